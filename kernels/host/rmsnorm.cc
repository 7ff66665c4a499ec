#include "kernels/host/rmsnorm.h"

#include <cmath>
#include <cstddef>

#include "kernels/host/dot.h"

namespace contraflow {

template <typename T>
void RmsNormForward(const T* x, const T* gain, int rows, int width, T* rstd, T* y) {
  for (int r = 0; r < rows; ++r) {
    const T* row = x + static_cast<ptrdiff_t>(r) * width;
    T* out = y + static_cast<ptrdiff_t>(r) * width;
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

#define CF_INSTANTIATE(T)                                                                        \
  template void RmsNormForward(const T*, const T*, int, int, T*, T*);                            \
  template void RmsNormBackwardInput(const T*, const T*, const T*, const T*, const T*, int, int, \
                                     T*);                                                        \
  template void RmsNormBackwardWeight(const T*, const T*, const T*, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
