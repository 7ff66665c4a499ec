#include "kernels/host/gemm.h"

#include <cblas.h>

namespace contraflow {
namespace {

// Ranks are threads of one process and the only parallelism; a library that splits a product over
// its own threads would both oversubscribe the cores and change the order of sums with their
// number.
void UseOneThread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

CBLAS_TRANSPOSE Flag(Transpose t) { return t == Transpose::kYes ? CblasTrans : CblasNoTrans; }

}  // namespace

template <>
void Gemm<float>(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  if (m == 0 || n == 0) return;
  UseOneThread();
  cblas_sgemm(CblasRowMajor, Flag(transpose_a), Flag(transpose_b), m, n, k, alpha, a, lda, b, ldb,
              beta, c, ldc);
}

template <>
void Gemm<double>(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, double alpha,
                  const double* a, int lda, const double* b, int ldb, double beta, double* c,
                  int ldc) {
  if (m == 0 || n == 0) return;
  UseOneThread();
  cblas_dgemm(CblasRowMajor, Flag(transpose_a), Flag(transpose_b), m, n, k, alpha, a, lda, b, ldb,
              beta, c, ldc);
}

}  // namespace contraflow
