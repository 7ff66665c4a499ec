#pragma once

// The two ends of a model, which know its vocabulary.

#include <cstdint>

namespace contraflow {

/// y[t] = table[tokens[t]], rows of `width`.
template <typename T>
void EmbeddingForward(const int32_t* tokens, const T* table, int rows, int width, T* y);

/// dtable[tokens[t]] += dy[t], in ascending t.
template <typename T>
void EmbeddingBackwardWeight(const int32_t* tokens, const T* dy, int rows, int width, T* dtable);

/// probabilities[rows x classes] holds the logits and becomes their softmax. Returns the mean over
/// the rows of -log(probability of the target).
template <typename T>
T CrossEntropyForward(const int32_t* targets, int rows, int classes, T* probabilities);

/// probabilities becomes the gradient of `scale` times that mean with respect to the logits.
template <typename T>
void CrossEntropyBackwardInput(const int32_t* targets, T scale, int rows, int classes,
                               T* probabilities);

}  // namespace contraflow
