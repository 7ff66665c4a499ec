#pragma once

// The example's needs of a CPU or of a GPU, under the same names: memory, a loop over numbers, and
// matrix products.

#include <cstddef>
#include <cstdlib>

#ifdef __CUDACC__
#include <cublas_v2.h>
#include <cuda_runtime.h>

using Stream = cudaStream_t;

template <typename F>
__global__ void EachKernel(int n, F f) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) f(i);
}
template <typename F>
void Each(Stream stream, int n, F f) {
  EachKernel<<<(n + 255) / 256, 256, 0, stream>>>(n, f);
}
#define DEVICE __device__
#define ANYWHERE __host__ __device__

inline float* New(size_t count) {
  float* at = nullptr;
  return cudaMalloc(&at, count * sizeof(float)) == cudaSuccess ? at : nullptr;
}
inline void Delete(float* at) { cudaFree(at); }

struct Blas {
  static constexpr size_t kWork = size_t{4} << 20;
  Blas() { cublasCreate(&handle), cudaMalloc(&work, kWork); }
  ~Blas() { cublasDestroy(handle), cudaFree(work); }
  // c[m x n] = a b + (add ? c : 0), where a, or b, may be stored transposed. cuBLAS goes by
  // columns.
  void Product(Stream s, bool ta, bool tb, int m, int n, int k, const float* a, const float* b,
               bool add, float* c) {
    const float one = 1, beta = add ? 1 : 0;
    cublasSetStream(handle, s), cublasSetWorkspace(handle, work, kWork);
    cublasSgemm(handle, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k,
                &one, b, tb ? k : n, a, ta ? m : k, &beta, c, n);
  }
  cublasHandle_t handle = nullptr;
  void* work = nullptr;
};
inline const char* Failed() {
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}
#else
#include <cblas.h>

using Stream = void*;

template <typename F>
void Each(Stream, int n, F f) {
  for (int i = 0; i < n; ++i) f(i);
}
#define DEVICE
#define ANYWHERE

inline float* New(size_t count) { return static_cast<float*>(std::malloc(count * sizeof(float))); }
inline void Delete(float* at) { std::free(at); }

struct Blas {
  void Product(Stream, bool ta, bool tb, int m, int n, int k, const float* a, const float* b,
               bool add, float* c) {
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n,
                k, 1, a, ta ? m : k, b, tb ? k : n, add ? 1.0f : 0.0f, c, n);
  }
};
inline const char* Failed() { return nullptr; }
#endif

// The statements for all i below n, whose variables they copy.
#define EACH(stream, n, i, ...) Each(stream, n, [=] DEVICE(int i) { __VA_ARGS__; })
