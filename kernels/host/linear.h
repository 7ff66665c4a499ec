#pragma once

// Matrix products on the host and the linear layer that is made of them.

#include <cstddef>

namespace contraflow {

/// Row `row` of a dense, row-major matrix of this width.
template <typename T>
T* Row(T* matrix, int row, int width) {
  return matrix + static_cast<ptrdiff_t>(row) * width;
}

/// Sum of a[i] * b[i] in a fixed order: eight interleaved partial sums, added pairwise at the end.
/// The order depends on n alone, so vector and scalar code give the same bits.
template <typename T>
T Dot(const T* a, const T* b, int n) {
  T lane[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += a[i] * b[i];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

enum class Transpose : bool { kNo, kYes };

/// c[m x n] = alpha * op(a)[m x k] * op(b)[k x n] + beta * c, row-major with leading dimensions; op
/// transposes where asked. With beta 0, c is written without being read. m, n and k may be 0.
/// Single-threaded OpenBLAS: the same shapes and values give the same bits on one machine, in every
/// thread. T is float or double.
template <typename T>
void Gemm(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, T alpha, const T* a,
          int lda, const T* b, int ldb, T beta, T* c, int ldc);
template <>
void Gemm<float>(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
template <>
void Gemm<double>(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, double alpha,
                  const double* a, int lda, const double* b, int ldb, double beta, double* c,
                  int ldc);

/// Takes the address space that this many products at a time work in. OpenBLAS, which has none yet,
/// would ask the system for it without an end. Throws std::bad_alloc where there is not enough.
void ReserveProducts(size_t at_a_time);

/// y[rows x out] = x[rows x in] w[in x out].
template <typename T>
void LinearForward(const T* x, const T* w, int rows, int in, int out, T* y);

/// Like LinearForward, added to what y holds.
template <typename T>
void LinearForwardAdd(const T* x, const T* w, int rows, int in, int out, T* y);

/// dx[rows x in] = dy[rows x out] w^T.
template <typename T>
void LinearBackwardInput(const T* dy, const T* w, int rows, int in, int out, T* dx);

/// Like LinearBackwardInput, added to what dx holds.
template <typename T>
void LinearBackwardInputAdd(const T* dy, const T* w, int rows, int in, int out, T* dx);

/// dw[in x out] += x^T dy.
template <typename T>
void LinearBackwardWeight(const T* x, const T* dy, int rows, int in, int out, T* dw);

}  // namespace contraflow
