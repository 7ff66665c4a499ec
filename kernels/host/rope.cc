#include "kernels/host/rope.h"

#include <cmath>
#include <cstddef>

namespace contraflow {
namespace {

template <typename T>
void Rotate(const T* cosine, const T* sine, T direction, int rows, int sequence, int heads,
            int head_width, T* qkv) {
  const int half = head_width / 2;
  for (int r = 0; r < rows; ++r) {
    const T* c = cosine + static_cast<ptrdiff_t>(r % sequence) * half;
    const T* s = sine + static_cast<ptrdiff_t>(r % sequence) * half;
    T* row = qkv + static_cast<ptrdiff_t>(r) * 3 * heads * head_width;
    // Queries and keys are neighbours in the row, so they look like twice as many heads.
    for (int h = 0; h < 2 * heads; ++h) {
      T* x = row + static_cast<ptrdiff_t>(h) * head_width;
      for (int i = 0; i < half; ++i) {
        const T even = x[2 * i], odd = x[2 * i + 1], turn = direction * s[i];
        x[2 * i] = even * c[i] - odd * turn;
        x[2 * i + 1] = even * turn + odd * c[i];
      }
    }
  }
}

}  // namespace

template <typename T>
void FillRopeTable(int sequence, int head_width, T* cosine, T* sine) {
  const int half = head_width / 2;
  for (int p = 0; p < sequence; ++p) {
    for (int i = 0; i < half; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / head_width);
      cosine[static_cast<ptrdiff_t>(p) * half + i] = static_cast<T>(std::cos(angle));
      sine[static_cast<ptrdiff_t>(p) * half + i] = static_cast<T>(std::sin(angle));
    }
  }
}

template <typename T>
void RopeForward(const T* cosine, const T* sine, int rows, int sequence, int heads, int head_width,
                 T* qkv) {
  Rotate<T>(cosine, sine, 1, rows, sequence, heads, head_width, qkv);
}

template <typename T>
void RopeBackwardInput(const T* cosine, const T* sine, int rows, int sequence, int heads,
                       int head_width, T* dqkv) {
  Rotate<T>(cosine, sine, -1, rows, sequence, heads, head_width, dqkv);
}

#define CF_INSTANTIATE(T)                                                \
  template void FillRopeTable(int, int, T*, T*);                         \
  template void RopeForward(const T*, const T*, int, int, int, int, T*); \
  template void RopeBackwardInput(const T*, const T*, int, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
