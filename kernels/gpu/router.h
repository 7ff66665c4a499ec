#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Most choices a token can have.
inline constexpr int kMaxTopK = 16;
/// Most experts that tokens can choose from.
inline constexpr int kMaxExperts = 1024;

/// probabilities[rows x experts] holds the logits and becomes their softmax over all experts. The
/// top_k most probable of a row, in descending order and ties to the lower index, go to
/// expert[rows x top_k]; their probabilities, not renormalised, to weight[rows x top_k].
void RouterForward(Stream stream, int rows, int experts, int top_k, float* probabilities,
                   int32_t* expert, float* weight);

/// Gradient of the logits from that of the weights; the choice itself is constant.
void RouterBackwardInput(Stream stream, const float* probabilities, const int32_t* expert,
                         const float* dweight, int rows, int experts, int top_k, Bf16* dlogits);

}  // namespace contraflow::gpu
