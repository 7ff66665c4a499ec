#pragma once

#include <cstdint>

namespace contraflow {

/// probabilities[rows x classes] holds the logits and becomes their softmax. Returns the mean over
/// the rows of -log(probability of the target).
template <typename T>
T CrossEntropyForward(const int32_t* targets, int rows, int classes, T* probabilities);

/// probabilities becomes the gradient of `scale` times that mean with respect to the logits.
template <typename T>
void CrossEntropyBackwardInput(const int32_t* targets, T scale, int rows, int classes,
                               T* probabilities);

}  // namespace contraflow
