#include "kernels/host/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/host/gemm.h"
#include "kernels/host/softmax.h"

namespace contraflow {
namespace {

constexpr Transpose kNo = Transpose::kNo;
constexpr Transpose kYes = Transpose::kYes;

// Where the matrices of one head of one sequence begin.
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
        T* row = p + static_cast<ptrdiff_t>(i) * n;
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
        T* row = ds + static_cast<ptrdiff_t>(i) * n;
        SoftmaxBackwardInput(p + static_cast<ptrdiff_t>(i) * n, row, i + 1, row);
        std::fill(row + i + 1, row + n, T{0});
      }
      Gemm<T>(kNo, kNo, n, hd, n, scale, ds, n, qkv + at.k, 3 * width, 0, dqkv + at.q, 3 * width);
      Gemm<T>(kYes, kNo, n, hd, n, scale, ds, n, qkv + at.q, 3 * width, 0, dqkv + at.k, 3 * width);
    }
  }
}

#define CF_INSTANTIATE(T)                                                  \
  template void AttentionForward(const AttentionShape&, const T*, T*, T*); \
  template void AttentionBackwardInput(const AttentionShape&, const T*, const T*, const T*, T*, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
