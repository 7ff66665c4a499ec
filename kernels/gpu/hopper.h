#pragma once

// What Hopper's matrix units, its copy engine and its barriers can do and C++ cannot say; included
// by .cu files after simt.h. hopper_device.h says it in PTX, hopper_emulated.h runs it on the host
// with the same meaning: descriptors, swizzles, fragments and phases are decoded there bit by bit,
// and what a GPU leaves undefined is NaN. The functions of both:
//
//   TensorMap MapTensor(data, columns, rows, matrices, box_rows)
//       on the host: a dense bf16 tensor of which LoadBox takes boxes of 64 columns x box_rows (at
//       most 256). columns is a multiple of 8, data 16-aligned, no extent is 0.
//   LoadBox(shared, map, column, row, matrix, mbarrier)
//       one thread: begins to copy a box to shared memory, 1024-aligned, rows of 128 bytes in the
//       128-byte swizzle; zero where the box lies outside of the tensor. Counts off box_rows * 128
//       bytes at the barrier when done.
//   MbarrierInit(mbarrier, arrivals), MbarrierInitFence()
//       one thread; the others may use it after the next __syncthreads.
//   MbarrierExpect(mbarrier, bytes)   arrives, and the phase lasts until that many bytes have come
//   MbarrierArrive(mbarrier)
//   MbarrierWait(mbarrier, parity)    until the phase of that parity (the first is 0) is over
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
//   StoreZero(pointer)                16 bytes of shared memory become 0
//   AsyncFence()              shared memory that this thread has stored to is seen by LoadBox and
//                             Wgmma that come after the next barrier
//   WarpgroupBarrier(id, threads)     bar.sync
//   TakeRegisters<n>(), GiveRegisters<n>()   a warpgroup: n registers a thread from now on
//   PrefetchLine(pointer)             of global memory, into L2
//   PackBf16(low, high)               two rounded to bf16, the first in the lower half
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

#ifdef __CUDACC__
#include "kernels/gpu/hopper_device.h"
#else
#include "emulator/hopper_emulated.h"
#endif
