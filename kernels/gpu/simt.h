#pragma once

// What kernels are written with. They are written once: nvcc compiles a .cu file for the GPU, a
// host compiler the same file for the emulator, which runs it thread by thread. This is the one
// file that knows which of the two it is; it is included by .cu files only.
//
//   CF_DYNAMIC_SHARED(T, name)   the dynamic shared memory of the block, as T* name, 1024-aligned
//   Launch(name, stream, grid, block, shared_bytes, kernel, arguments...)
//   CF_UNROLL                    the next loop, whose length the compiler knows, is written out, so
//                                that what it indexes can stay in registers
//
// and the part of CUDA that emulator.h declares: threadIdx and its like, __shared__,
// __syncthreads, the shuffles and votes of a warp, and atomics of integers.

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <string>

#define CF_UNROLL _Pragma("unroll")

#define CF_DYNAMIC_SHARED(type, name)                                  \
  extern __shared__ __align__(1024) unsigned char cf_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(cf_dynamic_shared)

namespace contraflow::gpu {

inline void Check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw GpuError(std::string(what) + ": " + cudaGetErrorString(code));
}

/// Launches kernel(arguments...) on the stream; the name is for errors and profiles.
template <typename... P, typename... A>
void Launch(const char* name, Stream stream, dim3 grid, dim3 block, size_t shared_bytes,
            void (*kernel)(P...), A... arguments) {
  constexpr size_t kSharedWithoutAsking = 48 << 10;
  if (shared_bytes > kSharedWithoutAsking) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          name);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  Check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), name);
}

}  // namespace contraflow::gpu

#else

#include "emulator/emulator.h"

#define CF_UNROLL

#define CF_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(::contraflow::emulator::DynamicShared())

namespace contraflow::gpu {

template <typename... P, typename... A>
void Launch(const char* name, Stream stream, dim3 grid, dim3 block, size_t shared_bytes,
            void (*kernel)(P...), A... arguments) {
  emulator::Enqueue(stream.handle, name, [=] {
    emulator::RunGrid(name, grid, block, shared_bytes,
                      [=] { kernel(static_cast<P>(arguments)...); });
  });
}

}  // namespace contraflow::gpu

#endif

namespace contraflow::gpu {

inline constexpr int kWarp = 32;

__host__ __device__ inline int CeilDiv(int a, int b) { return (a + b - 1) / b; }

/// The sum over a warp, the same bits in every lane.
__device__ inline float WarpSum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline float WarpMax(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

}  // namespace contraflow::gpu
