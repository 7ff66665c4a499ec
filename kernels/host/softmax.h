#pragma once

namespace contraflow {

/// x[0..n) becomes its softmax; returns the logarithm of the sum of exponentials.
template <typename T>
T Softmax(T* x, int n);

/// dx = p * (dp - sum(p * dp)), the gradient through a softmax with result p; dx may be dp.
template <typename T>
void SoftmaxBackwardInput(const T* p, const T* dp, int n, T* dx);

}  // namespace contraflow
