#pragma once

namespace contraflow {

enum class Transpose : bool { kNo, kYes };

/// c[m x n] = alpha * op(a)[m x k] * op(b)[k x n] + beta * c, row-major with leading dimensions; op
/// transposes where asked. With beta 0, c is written without being read. m, n and k may be 0.
/// Single-threaded OpenBLAS: the same shapes and values give the same bits on one machine, in every
/// thread. T is float or double.
template <typename T>
void Gemm(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, T alpha, const T* a,
          int lda, const T* b, int ldb, T beta, T* c, int ldc);

}  // namespace contraflow
