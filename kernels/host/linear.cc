#include "kernels/host/linear.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <vector>

// OpenBLAS has them, and no header that says so.
extern "C" {
[[gnu::weak]] void* blas_memory_alloc(int);
[[gnu::weak]] void blas_memory_free(void*);
}

namespace contraflow {
namespace {

/// Address space of a product at most, and products at a time that OpenBLAS keeps some for.
constexpr size_t kProductBytes = size_t{129} << 20, kMostProducts = 32;

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

void ReserveProducts(size_t at_a_time) {
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr) return;
  UseOneThread();
  std::vector<void*> taken(std::min(at_a_time, kMostProducts));
  const size_t bytes = taken.size() * kProductBytes;
  void* const room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  munmap(room, bytes);
  for (void*& one : taken) one = blas_memory_alloc(0);
  for (void* one : taken) blas_memory_free(one);
}

template <typename T>
void LinearForward(const T* x, const T* w, int rows, int in, int out, T* y) {
  Gemm<T>(Transpose::kNo, Transpose::kNo, rows, out, in, 1, x, in, w, out, 0, y, out);
}

template <typename T>
void LinearForwardAdd(const T* x, const T* w, int rows, int in, int out, T* y) {
  Gemm<T>(Transpose::kNo, Transpose::kNo, rows, out, in, 1, x, in, w, out, 1, y, out);
}

template <typename T>
void LinearBackwardInput(const T* dy, const T* w, int rows, int in, int out, T* dx) {
  Gemm<T>(Transpose::kNo, Transpose::kYes, rows, in, out, 1, dy, out, w, out, 0, dx, in);
}

template <typename T>
void LinearBackwardInputAdd(const T* dy, const T* w, int rows, int in, int out, T* dx) {
  Gemm<T>(Transpose::kNo, Transpose::kYes, rows, in, out, 1, dy, out, w, out, 1, dx, in);
}

template <typename T>
void LinearBackwardWeight(const T* x, const T* dy, int rows, int in, int out, T* dw) {
  if (rows == 0) return;
  Gemm<T>(Transpose::kYes, Transpose::kNo, in, out, rows, 1, x, in, dy, out, 1, dw, out);
}

#define CF_INSTANTIATE(T)                                                      \
  template void LinearForward(const T*, const T*, int, int, int, T*);          \
  template void LinearForwardAdd(const T*, const T*, int, int, int, T*);       \
  template void LinearBackwardInput(const T*, const T*, int, int, int, T*);    \
  template void LinearBackwardInputAdd(const T*, const T*, int, int, int, T*); \
  template void LinearBackwardWeight(const T*, const T*, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
