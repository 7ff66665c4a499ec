#pragma once

// Normalization of a row: RMSNorm and softmax.

namespace contraflow {

/// Added to the mean square before the root.
inline constexpr double kRmsNormEpsilon = 1e-5;

/// y = gain * x * rstd per row, rstd[row] = 1 / sqrt(mean(x^2) + kRmsNormEpsilon).
template <typename T>
void RmsNormForward(const T* x, const T* gain, int rows, int width, T* rstd, T* y);

/// dx = residual + the gradient through the norm; dx may be `residual` itself.
template <typename T>
void RmsNormBackwardInput(const T* x, const T* gain, const T* rstd, const T* dy, const T* residual,
                          int rows, int width, T* dx);

/// dgain += sum over rows, ascending, of dy * x * rstd.
template <typename T>
void RmsNormBackwardWeight(const T* x, const T* rstd, const T* dy, int rows, int width, T* dgain);

/// x[0..n) becomes its softmax; returns the logarithm of the sum of exponentials.
template <typename T>
T Softmax(T* x, int n);

/// dx = p * (dp - sum(p * dp)), the gradient through a softmax with result p; dx may be dp.
template <typename T>
void SoftmaxBackwardInput(const T* p, const T* dp, int n, T* dx);

}  // namespace contraflow
