#include "kernels/host/softmax.h"

#include <algorithm>
#include <cmath>

#include "kernels/host/dot.h"

namespace contraflow {

template <typename T>
T Softmax(T* x, int n) {
  T largest = x[0];
  for (int i = 1; i < n; ++i) largest = std::max(largest, x[i]);
  T sum = 0;
  for (int i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - largest);
    sum += x[i];
  }
  const T scale = T{1} / sum;
  for (int i = 0; i < n; ++i) x[i] *= scale;
  return largest + std::log(sum);
}

template <typename T>
void SoftmaxBackwardInput(const T* p, const T* dp, int n, T* dx) {
  const T mean = Dot(p, dp, n);
  for (int i = 0; i < n; ++i) dx[i] = p[i] * (dp[i] - mean);
}

#define CF_INSTANTIATE(T)      \
  template T Softmax(T*, int); \
  template void SoftmaxBackwardInput(const T*, const T*, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
