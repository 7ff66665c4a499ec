#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// y[t] = residual[t] + sum over k, ascending and in fp32, of weight[t][k] * sorted[row_of[t][k]];
/// a pair of row -1 adds nothing.
void CombineForward(Stream stream, const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                    const float* weight, int rows, int top_k, int width, Bf16* y);

/// dsorted[row_of[t][k]] = weight[t][k] * dy[t]; dweight[t][k] = dot(dy[t], sorted[row_of[t][k]]),
/// for a pair of row -1 only dweight, 0. Of the sorted_rows rows those of token -1 become 0.
void CombineBackwardInput(Stream stream, const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                          const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                          int top_k, int width, Bf16* dsorted, float* dweight);

}  // namespace contraflow::gpu
