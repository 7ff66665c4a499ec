#pragma once

#include <cstddef>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// y[rows x width] = gain * x * rstd per row, rstd[row] = 1 / sqrt(mean(x^2) + kRmsNormEpsilon).
/// Traffic: 4 bytes a value. Rows of up to 16384 values, a multiple of 8, are read once and stay in
/// registers; others are read a second time, from the caches.
void RmsNormForward(Stream stream, const Bf16* x, const float* gain, int rows, int width,
                    float* rstd, Bf16* y);

/// dx = residual + the gradient through the norm; residual may be null (none), dx may be residual.
/// Traffic: 8 bytes a value, 6 without residual.
void RmsNormBackwardInput(Stream stream, const Bf16* x, const float* gain, const float* rstd,
                          const Bf16* dy, const Bf16* residual, int rows, int width, Bf16* dx);

/// Floats of work memory that RmsNormBackwardWeight needs.
size_t RmsNormWork(int rows, int width);
/// dgain[width] += sum over rows of dy * x * rstd, in an order that depends on rows and width
/// alone. Traffic: 4 bytes a value, and 8 a float of work.
void RmsNormBackwardWeight(Stream stream, const Bf16* x, const float* rstd, const Bf16* dy,
                           int rows, int width, float* work, float* dgain);

}  // namespace contraflow::gpu
