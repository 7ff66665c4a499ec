#pragma once

#include <cstdint>

namespace contraflow {

/// y[t] = residual[t] + sum over k, ascending, of weight[t][k] * sorted[row_of[t][k]]; a pair of
/// row -1 adds nothing.
template <typename T>
void CombineForward(const T* residual, const T* sorted, const int32_t* row_of, const T* weight,
                    int rows, int top_k, int width, T* y);

/// dsorted[row_of[t][k]] = weight[t][k] * dy[t]; dweight[t][k] = dot(dy[t], sorted[row_of[t][k]]),
/// for a pair of row -1 only dweight, 0. The gradient of the residual is dy. Has no weights that
/// are parameters.
template <typename T>
void CombineBackwardInput(const T* dy, const T* sorted, const int32_t* row_of, const T* weight,
                          int rows, int top_k, int width, T* dsorted, T* dweight);

}  // namespace contraflow
