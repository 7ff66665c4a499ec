#include "kernels/host/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"

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
      T* x = Row(row, h, head_width);
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

namespace {

constexpr Transpose kNo = Transpose::kNo;
constexpr Transpose kYes = Transpose::kYes;

// Start of the matrices of one head of one sequence.
struct Head {
  ptrdiff_t q, k, v, out, square;
};

Head HeadAt(const AttentionShape& shape, int sequence, int head) {
  const ptrdiff_t width = static_cast<ptrdiff_t>(shape.heads) * shape.head_width;
  const ptrdiff_t row = static_cast<ptrdiff_t>(sequence) * shape.sequence;
  const ptrdiff_t column = static_cast<ptrdiff_t>(head) * shape.head_width;
  const ptrdiff_t q = row * 3 * width + column;
  const ptrdiff_t square =
      (static_cast<ptrdiff_t>(sequence) * shape.heads + head) * shape.sequence * shape.sequence;
  return {q, q + width, q + 2 * width, row * width + column, square};
}

}  // namespace

template <typename T>
void AttentionForward(const AttentionShape& shape, const T* qkv, T* probabilities, T* out) {
  const int n = shape.sequence, hd = shape.head_width, width = shape.heads * hd;
  const T scale = T{1} / std::sqrt(static_cast<T>(hd));
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      const Head at = HeadAt(shape, b, h);
      T* p = probabilities + at.square;
      Gemm<T>(kNo, kYes, n, n, hd, scale, qkv + at.q, 3 * width, qkv + at.k, 3 * width, 0, p, n);
      for (int i = 0; i < n; ++i) {
        T* row = Row(p, i, n);
        Softmax(row, i + 1);
        std::fill(row + i + 1, row + n, T{0});
      }
      Gemm<T>(kNo, kNo, n, hd, n, 1, p, n, qkv + at.v, 3 * width, 0, out + at.out, width);
    }
  }
}

template <typename T>
void AttentionBackwardInput(const AttentionShape& shape, const T* qkv, const T* probabilities,
                            const T* dout, T* work, T* dqkv) {
  const int n = shape.sequence, hd = shape.head_width, width = shape.heads * hd;
  const T scale = T{1} / std::sqrt(static_cast<T>(hd));
  T* const ds = work;
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      const Head at = HeadAt(shape, b, h);
      const T* p = probabilities + at.square;
      const T* dy = dout + at.out;
      Gemm<T>(kYes, kNo, n, hd, n, 1, p, n, dy, width, 0, dqkv + at.v, 3 * width);
      Gemm<T>(kNo, kYes, n, n, hd, 1, dy, width, qkv + at.v, 3 * width, 0, ds, n);
      for (int i = 0; i < n; ++i) {
        T* row = Row(ds, i, n);
        SoftmaxBackwardInput(Row(p, i, n), row, i + 1, row);
        std::fill(row + i + 1, row + n, T{0});
      }
      Gemm<T>(kNo, kNo, n, hd, n, scale, ds, n, qkv + at.k, 3 * width, 0, dqkv + at.q, 3 * width);
      Gemm<T>(kYes, kNo, n, hd, n, scale, ds, n, qkv + at.q, 3 * width, 0, dqkv + at.k, 3 * width);
    }
  }
}

#define CF_INSTANTIATE(T)                                                      \
  template void FillRopeTable(int, int, T*, T*);                               \
  template void RopeForward(const T*, const T*, int, int, int, int, T*);       \
  template void RopeBackwardInput(const T*, const T*, int, int, int, int, T*); \
  template void AttentionForward(const AttentionShape&, const T*, T*, T*);     \
  template void AttentionBackwardInput(const AttentionShape&, const T*, const T*, const T*, T*, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
