#pragma once

#include <cstdint>

namespace contraflow {

/// probabilities[rows x experts] holds the logits and becomes their softmax over all experts. The
/// top_k most probable experts of a row, in descending order and ties to the lower index, go to
/// expert[rows x top_k]; their probabilities, not renormalised, to weight[rows x top_k].
/// (Renormalised weights would leave the router of a top-1 model without a gradient.)
template <typename T>
void RouterForward(int rows, int experts, int top_k, T* probabilities, int32_t* expert, T* weight);

/// Gradient of the logits from that of the weights; the choice itself is constant.
template <typename T>
void RouterBackwardInput(const T* probabilities, const int32_t* expert, const T* dweight, int rows,
                         int experts, int top_k, T* dlogits);

}  // namespace contraflow
