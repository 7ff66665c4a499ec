#pragma once

// Language of the kernels. They are written once: nvcc compiles a .cu file for the GPU; tests
// compile the same file for the host and run it thread by thread, with what stands in for CUDA
// there. Included by .cu files only. In addition to the part of CUDA that every kernel uses
// (threadIdx and its like, __shared__, __syncthreads, the shuffles and votes of a warp, atomics of
// integers):
//
//   CF_DYNAMIC_SHARED(T, name)   the dynamic shared memory of the block, as T* name, 1024-aligned
//   CF_UNROLL                    the next loop, whose length the compiler knows, is written out, so
//                                that what it indexes can stay in registers
//   Launch(name, stream, grid, block, shared_bytes, kernel, arguments...)
//   LaunchClusters(name, stream, blocks, grid, ...)   likewise, this many neighbours in x a
//   cluster,
//                                of which the grid is a multiple; the kernel has no __shared__
//   Load16, Store16, Store8      one instruction each; the address must be a multiple of their size
//   PackBf16(low, high)          two rounded to bf16, the first in the lower half
//   FastExp, FastReciprocal      off by at most 2 + 1.2 |x| units in the last place (CUDA
//                                Programming Guide, "Intrinsic Functions") and by one
//   GlobalTimer()                the GPU's clock, in nanoseconds

#include <bit>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

#ifndef __CUDACC__
#include "emulator/simt_emulated.h"
#else

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
void LaunchClusters(const char* name, Stream stream, unsigned blocks, dim3 grid, dim3 block,
                    size_t shared_bytes, void (*kernel)(P...), A... arguments) {
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
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = blocks > 1 ? 1 : 0;
  Check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), name);
}

template <typename... P, typename... A>
void Launch(const char* name, Stream stream, dim3 grid, dim3 block, size_t shared_bytes,
            void (*kernel)(P...), A... arguments) {
  LaunchClusters(name, stream, 1, grid, block, shared_bytes, kernel, arguments...);
}

__device__ inline uint4 Load16(const void* from) { return *static_cast<const uint4*>(from); }
// Assigned, nvcc 13 splits some into their words.
__device__ inline void Store16(void* to, uint4 value) { __stwb(static_cast<uint4*>(to), value); }
__device__ inline void Store8(void* to, uint2 value) { __stwb(static_cast<uint2*>(to), value); }

__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline float FastExp(float x) { return __expf(x); }
__device__ inline float FastReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint64_t GlobalTimer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace contraflow::gpu

#endif

namespace contraflow::gpu {

inline constexpr int kWarp = 32;

__host__ __device__ inline int CeilDiv(int a, int b) { return (a + b - 1) / b; }
inline unsigned Unsigned(int x) { return static_cast<unsigned>(x); }

__device__ inline int ThreadIndex() { return static_cast<int>(threadIdx.x); }
__device__ inline int Lane() { return ThreadIndex() % kWarp; }
__device__ inline int BlockIndex() { return static_cast<int>(blockIdx.x); }
__device__ inline int BlockCount() { return static_cast<int>(gridDim.x); }

/// The row `row` of a matrix of this width.
template <typename T>
__device__ inline T* Row(T* matrix, int row, int width) {
  return matrix + static_cast<ptrdiff_t>(row) * width;
}

/// The halves of what PackBf16 has packed.
__device__ inline float LowHalf(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
__device__ inline float HighHalf(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

/// The sum over a warp, the same bits in every lane.
__device__ inline float WarpSum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline float WarpMax(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// The sum of the values of the lanes up to this one, its own included.
__device__ inline int ScanWarp(int value) {
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(~0u, value, step);
    if (Lane() >= step) value += before;
  }
  return value;
}

/// The sum of the values of the threads before this one. Called by every thread of a block of at
/// most 32 whole warps.
__device__ inline int ScanBlock(int value) {
  __shared__ int of_warp[kWarp];
  const int lane = Lane(), warp = ThreadIndex() / kWarp;
  const int up_to_here = ScanWarp(value);
  if (lane == kWarp - 1) of_warp[warp] = up_to_here;
  __syncthreads();
  int before = up_to_here - value;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  // The next scan may write to it.
  __syncthreads();
  return before;
}

/// How many of sorted[n], ascending, are at most `value`; the warp searches as one.
__device__ inline int CountUpTo(const int32_t* sorted, int n, int value) {
  const int lane = Lane();
  int begin = 0;
  while (n > 0) {
    // Each lane compares the last of its share; the lanes that hold are the first ones.
    const int share = CeilDiv(n, kWarp);
    const int last = (lane + 1) * share - 1;
    const bool small = last < n && sorted[begin + last] <= value;
    const int passed = __popc(__ballot_sync(~0u, small)) * share;
    begin += passed;
    n = min(n - passed, share - 1);
  }
  return begin;
}

}  // namespace contraflow::gpu
