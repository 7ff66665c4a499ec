#include "kernels/host/normalization.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/host/linear.h"

namespace contraflow {

template <typename T>
void RmsNormForward(const T* x, const T* gain, int rows, int width, T* rstd, T* y) {
  for (int r = 0; r < rows; ++r) {
    const T* row = Row(x, r, width);
    T* out = Row(y, r, width);
    const T mean_square = Dot(row, row, width) / static_cast<T>(width);
    rstd[r] = T{1} / std::sqrt(mean_square + static_cast<T>(kRmsNormEpsilon));
    for (int j = 0; j < width; ++j) out[j] = gain[j] * (row[j] * rstd[r]);
  }
}

// With u = gain * dy and h = x * rstd: dx = rstd * (u - h * mean(u * h)).
template <typename T>
void RmsNormBackwardInput(const T* x, const T* gain, const T* rstd, const T* dy, const T* residual,
                          int rows, int width, T* dx) {
  for (int r = 0; r < rows; ++r) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(r) * width;
    T sum = 0;
    for (int j = 0; j < width; ++j) sum += gain[j] * dy[begin + j] * x[begin + j];
    const T slope = sum * rstd[r] * rstd[r] / static_cast<T>(width);
    for (int j = 0; j < width; ++j) {
      const T through = rstd[r] * (gain[j] * dy[begin + j] - x[begin + j] * slope);
      dx[begin + j] = residual[begin + j] + through;
    }
  }
}

template <typename T>
void RmsNormBackwardWeight(const T* x, const T* rstd, const T* dy, int rows, int width, T* dgain) {
  for (int r = 0; r < rows; ++r) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(r) * width;
    for (int j = 0; j < width; ++j) dgain[j] += dy[begin + j] * (x[begin + j] * rstd[r]);
  }
}

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

#define CF_INSTANTIATE(T)                                                                        \
  template void RmsNormForward(const T*, const T*, int, int, T*, T*);                            \
  template void RmsNormBackwardInput(const T*, const T*, const T*, const T*, const T*, int, int, \
                                     T*);                                                        \
  template void RmsNormBackwardWeight(const T*, const T*, const T*, int, int, T*);               \
  template T Softmax(T*, int);                                                                   \
  template void SoftmaxBackwardInput(const T*, const T*, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
