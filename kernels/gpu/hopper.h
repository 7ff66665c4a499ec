#pragma once

// Instructions of Hopper's matrix units, its copy engine and its barriers that C++ cannot say, in
// PTX. Included by .cu files only. Tests run the same functions on the host, where descriptors,
// swizzles, fragments and phases are decoded bit by bit, and what a GPU leaves undefined is NaN:
//
//   TensorMap MapTensor(data, columns, rows, matrices, box_rows, box_matrices = 1)
//       on the host: a dense bf16 tensor of which LoadBox and StoreBox take boxes of 64 columns x
//       box_rows x box_matrices (each at most 256). columns is a multiple of 8, data 16-aligned, no
//       extent is 0.
//   MapFloats(data, columns, rows, matrices, box_rows)
//       on the host: likewise of floats, to which AddBox adds boxes of 32 columns x box_rows x 1.
//       columns is a multiple of 4.
//   LoadBox(shared, map, column, row, matrix, mbarrier)
//       one thread: begins to copy a box to shared memory, 1024-aligned, rows of 128 bytes in the
//       128-byte swizzle; zero where the box lies outside of the tensor. Counts off box_rows * 128
//       bytes for each matrix at the barrier when done.
//   LoadBoxToBlocks(shared, map, column, row, matrix, mbarrier, blocks)
//       the same to that place of each block of the cluster whose bit in `blocks` is 1, and counted
//       off at the barrier in that place of it
//   MbarrierInit(mbarrier, arrivals), MbarrierInitFence()
//       one thread; the others may use it after the next __syncthreads.
//   MbarrierExpect(mbarrier, bytes)   arrives, and the phase lasts until that many bytes have come
//   MbarrierArrive(mbarrier)
//   MbarrierArriveAt(mbarrier, block)   at the barrier in that place of a block of the cluster, by
//                             a thread that has read shared memory; its writes are not visible
//                             there
//   MbarrierWait(mbarrier, parity)    until the phase of that parity (the first is 0) is over
//   SyncCluster()             until all threads of all blocks of the cluster are there
//   StoreBox(map, column, row, matrix, shared)
//       one thread: begins to copy a box from shared memory, in which it lies as LoadBox puts it;
//       parts outside of the tensor are dropped
//   AddBox(map, column, row, matrix, shared)   the same, added to what is there; subnormal numbers
//                             count as 0 and become 0
//   StoreCommit()             closes a group of the thread's stores
//   StoreWaitRead<n>()        until shared memory of all but its n youngest groups has been read
//   StoreWaitAll()            until all are done
//   WgmmaFence(accumulators)  before products whose accumulators other instructions have touched
//   Wgmma<a_mn, b_mn>(accumulators, a, b, add)
//       the 128 threads of a warpgroup: [64 x 256] = (add ? itself : 0) + A[64 x 16] B[16 x 256];
//       operands are descriptors (MatrixDescriptor), K-major or, with *_mn, M- or N-major.
//       Accumulator 4 j + 2 h + i of thread t is in row 16 (t / 32 % 4) + t % 32 / 4 + 8 h, column
//       8 j + 2 (t % 4) + i. Neither accumulators nor shared memory are to be touched before the
//       WgmmaWait that covers it.
//   WgmmaCommit()                     closes a group of products
//   WgmmaWait<n>(accumulators)        until all but the n youngest groups are done
//   SharedAddress(pointer)            32-bit address in shared memory
//   StoreShared(pointer, value)       8 or 16 bytes of shared memory
//   AsyncFence()              shared memory that this thread has stored to is seen by LoadBox,
//                             StoreBox and Wgmma that come after the next barrier
//   WarpgroupBarrier(id, threads)     bar.sync
//   TakeRegisters<n>(), GiveRegisters<n>()   a warpgroup: n registers a thread from now on
//   ThreadIndexAnew()                 threadIdx.x; the compiler keeps nothing it has computed of it
//   Sigmoid(x)                        to some units in the last place

#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

inline constexpr int kWarpgroup = 128;
/// Bytes of a row of a box, and bf16 in it; 8 such rows are the atom of the swizzle.
inline constexpr int kBoxRowBytes = 128;
inline constexpr int kBoxColumns = 64;
inline constexpr int kAtomBytes = 8 * kBoxRowBytes;
/// Depth of a product of the matrix units.
inline constexpr int kWgmmaDepth = 16;
inline constexpr int kAccumulators = 128;

/// Describes an operand in shared memory, in the 128-byte swizzle (PTX ISA, "Matrix Descriptor
/// Format"). K-major: rows of 64 k, `stride` bytes from 8 rows to the next 8; `leading` is ignored.
/// M- or N-major: 64 of them contiguous for each k, `stride` bytes from 8 k to the next 8,
/// `leading` from 64 of them to the next 64.
__host__ __device__ inline uint64_t MatrixDescriptor(uint32_t address, uint32_t leading,
                                                     uint32_t stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  const auto field = [](uint32_t bytes) { return uint64_t{(bytes & 0x3ffffu) >> 4}; };
  return field(address) | field(leading) << 16 | field(stride) << 32 | kSwizzle128;
}

}  // namespace contraflow::gpu

#ifndef __CUDACC__
#include "emulator/hopper_emulated.h"
#else

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace contraflow::gpu {

using TensorMap = CUtensorMap;

/// A row of a box is kBoxRowBytes.
inline TensorMap MapElements(CUtensorMapDataType type, size_t element_bytes, void* data,
                             uint64_t columns, uint64_t rows, uint64_t matrices, uint32_t box_rows,
                             uint32_t box_matrices) {
  // Looked up by name, so that programs need no libcuda to start.
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kVersion = 12000;
    Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || function == nullptr) {
      throw GpuError("the driver has no cuTensorMapEncodeTiled; it must be of CUDA 12 or later");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  constexpr uint32_t kRank = 3;
  const cuuint64_t extents[kRank] = {columns, rows, matrices};
  const cuuint64_t strides[kRank - 1] = {columns * element_bytes, rows * columns * element_bytes};
  const auto box_columns = static_cast<cuuint32_t>(kBoxRowBytes / element_bytes);
  const cuuint32_t box[kRank] = {box_columns, box_rows, box_matrices};
  const cuuint32_t steps[kRank] = {1, 1, 1};
  TensorMap map;
  const CUresult result =
      encode(&map, type, kRank, data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw GpuError("cuTensorMapEncodeTiled refuses " + std::to_string(matrices) + " x " +
                   std::to_string(rows) + " x " + std::to_string(columns) + " of " +
                   std::to_string(element_bytes) + " bytes (error " + std::to_string(result) + ")");
  }
  return map;
}

inline TensorMap MapTensor(const Bf16* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                           uint32_t box_rows, uint32_t box_matrices = 1) {
  return MapElements(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sizeof(Bf16), const_cast<Bf16*>(data),
                     columns, rows, matrices, box_rows, box_matrices);
}

inline TensorMap MapFloats(float* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                           uint32_t box_rows) {
  return MapElements(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, sizeof(float), data, columns, rows, matrices,
                     box_rows, 1);
}

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

struct Mbarrier {
  uint64_t state;
};

__device__ inline void MbarrierInit(Mbarrier* mbarrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(mbarrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void MbarrierInitFence() {
  // For threads of this block alone fence.proxy.async would do; this one is of both.
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void MbarrierExpect(Mbarrier* mbarrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(mbarrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline void MbarrierArrive(Mbarrier* mbarrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(mbarrier))
               : "memory");
}

__device__ inline void MbarrierWait(Mbarrier* mbarrier, int parity) {
  uint32_t over = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(over)
        : "r"(SharedAddress(mbarrier)), "r"(parity)
        : "memory");
  } while (over == 0);
}

__device__ inline void LoadBox(void* shared, const TensorMap& map, int column, int row, int matrix,
                               Mbarrier* mbarrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(SharedAddress(mbarrier))
      : "memory");
}

__device__ inline void LoadBoxToBlocks(void* shared, const TensorMap& map, int column, int row,
                                       int matrix, Mbarrier* mbarrier, unsigned blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(SharedAddress(mbarrier)),
      "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// A release at the scope of the cluster would wait for all that the thread has stored to memory.
__device__ inline void MbarrierArriveAt(Mbarrier* mbarrier, unsigned block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(SharedAddress(mbarrier)),
      "r"(block)
      : "memory");
}

__device__ inline void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline void StoreBox(const TensorMap& map, int column, int row, int matrix,
                                const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          &map),
      "r"(column), "r"(row), "r"(matrix), "r"(SharedAddress(shared))
      : "memory");
}

__device__ inline void AddBox(const TensorMap& map, int column, int row, int matrix,
                              const void* shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
      "[%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(column), "r"(row), "r"(matrix), "r"(SharedAddress(shared))
      : "memory");
}

__device__ inline void StoreCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

template <int kYoungest>
__device__ inline void StoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kYoungest) : "memory");
}

__device__ inline void StoreWaitAll() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Keeps the compiler from moving accumulators while the matrix units have them.
__device__ inline void HoldAccumulators(float (&accumulators)[kAccumulators]) {
  CF_UNROLL
  for (int i = 0; i < kAccumulators; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

__device__ inline void WgmmaFence(float (&accumulators)[kAccumulators]) {
  HoldAccumulators(accumulators);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kYoungest>
__device__ inline void WgmmaWait(float (&accumulators)[kAccumulators]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kYoungest) : "memory");
  HoldAccumulators(accumulators);
}

#define CF_FOUR(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define CF_SIXTEEN(i) CF_FOUR(i), CF_FOUR((i) + 4), CF_FOUR((i) + 8), CF_FOUR((i) + 12)

template <bool kAMn, bool kBMn>
__device__ inline void Wgmma(float (&d)[kAccumulators], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127"
      "}, %128, %129, add, 1, 1, %131, %132;\n"
      "}"
      : CF_SIXTEEN(0), CF_SIXTEEN(16), CF_SIXTEEN(32), CF_SIXTEEN(48), CF_SIXTEEN(64),
        CF_SIXTEEN(80), CF_SIXTEEN(96), CF_SIXTEEN(112)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kAMn ? 1 : 0), "n"(kBMn ? 1 : 0));
}

#undef CF_SIXTEEN
#undef CF_FOUR

template <typename T>
__device__ inline void StoreShared(void* shared, T value) {
  *static_cast<T*>(shared) = value;
}

__device__ inline void AsyncFence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void WarpgroupBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kCount>
__device__ inline void TakeRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ inline void GiveRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

__device__ inline int ThreadIndexAnew() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

__device__ inline float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

}  // namespace contraflow::gpu

#endif
