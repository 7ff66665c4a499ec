#include "kernels/host/swiglu.h"

#include <cmath>
#include <cstddef>

namespace contraflow {
namespace {

template <typename T>
T Sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

}  // namespace

template <typename T>
void SwigluForward(const T* gate_up, int rows, int width, T* y) {
  for (int r = 0; r < rows; ++r) {
    const T* gate = gate_up + static_cast<ptrdiff_t>(r) * 2 * width;
    const T* up = gate + width;
    T* out = y + static_cast<ptrdiff_t>(r) * width;
    for (int j = 0; j < width; ++j) out[j] = gate[j] * Sigmoid(gate[j]) * up[j];
  }
}

template <typename T>
void SwigluBackwardInput(const T* gate_up, const T* dy, int stride, int rows, int width,
                         T* dgate_up) {
  for (int r = 0; r < rows; ++r) {
    const T* gate = gate_up + static_cast<ptrdiff_t>(r) * 2 * width;
    const T* up = gate + width;
    const T* d = dy + static_cast<ptrdiff_t>(r) * stride;
    T* dgate = dgate_up + static_cast<ptrdiff_t>(r) * 2 * width;
    T* dup = dgate + width;
    for (int j = 0; j < width; ++j) {
      const T s = Sigmoid(gate[j]);
      const T dj = d[j];
      dup[j] = dj * gate[j] * s;
      dgate[j] = dj * up[j] * s * (T{1} + gate[j] * (T{1} - s));
    }
  }
}

#define CF_INSTANTIATE(T)                              \
  template void SwigluForward(const T*, int, int, T*); \
  template void SwigluBackwardInput(const T*, const T*, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
