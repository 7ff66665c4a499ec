#pragma once

// Parts of our own attention kernels: tiles of rows of one head in shared memory, and products of
// them by warps, 16 rows of the left operand to a warp. A tile's rows have kWidth elements, the
// head's width padded with zeros, and 16 bytes more, which keeps ldmatrix free of bank conflicts.
// Included by .cu files only.
//
// First the instructions, PTX that C++ cannot say: copies to shared memory that go on while the
// thread does other things, and products of small matrices by a whole warp. Lane l has, with
// g = l / 4 and t = l % 4, in fragments of
//   a [16 x 16]   (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with its right neighbour
//   b [16 x 8]    (2t, g) (2t + 8, g), each with its lower neighbour
//   d [16 x 8]    (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
// and lower addresses in the lower half of a word.

#include <cstdint>
#include <type_traits>

#include "kernels/gpu/simt.h"
#include "kernels/host/attention.h"

#ifndef __CUDACC__
#include "emulator/mma_emulated.h"
#else

namespace contraflow::gpu {

/// Begins to copy kBytes, 16 or 4, aligned to as many; zeros, without reading, unless `valid`.
template <int kBytes>
__device__ inline void AsyncCopy(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  }
}

/// The copies that the thread has begun since the last call are a group.
__device__ inline void AsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kGroups of the thread's groups are under way. Others' need a barrier too.
template <int kGroups>
__device__ inline void AsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// 2^x to about 2^-22; 0 for minus infinity.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// d += a b, in fp32.
__device__ inline void WarpMma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices from shared memory: lane l names row l % 8 of matrix l / 8,
/// 16-aligned. It gets of each matrix m elements (g, 2t) and (g, 2t + 1) in word m.
__device__ inline void LoadMatrices(uint32_t (&words)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same of the transposed matrices: elements (2t, g) and (2t + 1, g).
__device__ inline void LoadTransposed(uint32_t (&words)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace contraflow::gpu

#endif

namespace contraflow::gpu {

inline constexpr int kBlockRows = 128;  ///< rows that a block owns
inline constexpr int kPiece = 8;        ///< elements that are copied at once
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLogOf2 = 0.693147180559945309417f;

template <int kWidth>
inline constexpr int kPitch = kWidth + kPiece;

/// The first row of a head of a sequence: queries in qkv, whose rows are 3 * heads * head_width
/// apart and which keys and values follow at heads * head_width and twice that.
__device__ inline ptrdiff_t FirstQuery(const AttentionShape& shape, int batch, int head) {
  const int width = shape.heads * shape.head_width;
  return static_cast<ptrdiff_t>(batch) * shape.sequence * 3 * width + head * shape.head_width;
}
/// The same in out, whose rows are heads * head_width apart.
__device__ inline ptrdiff_t FirstOut(const AttentionShape& shape, int batch, int head) {
  const int width = shape.heads * shape.head_width;
  return static_cast<ptrdiff_t>(batch) * shape.sequence * width + head * shape.head_width;
}
/// The same in lse.
__device__ inline ptrdiff_t FirstSum(const AttentionShape& shape, int batch, int head) {
  return (static_cast<ptrdiff_t>(batch) * shape.heads + head) * shape.sequence;
}

/// Begins to copy rows of `width` elements into a tile; of rows from `rows` on, zeros.
template <int kRows, int kWidth>
__device__ inline void LoadTile(const Bf16* from, int pitch, int rows, int width, Bf16* tile) {
  constexpr int kPieces = kWidth / kPiece;
  for (int i = ThreadIndex(); i < kRows * kPieces; i += static_cast<int>(blockDim.x)) {
    const int row = i / kPieces, column = i % kPieces * kPiece;
    const bool valid = row < rows && column < width;
    AsyncCopy<16>(tile + row * kPitch<kWidth> + column,
                  valid ? from + static_cast<ptrdiff_t>(row) * pitch + column : from, valid);
  }
}

/// The lane's row of a fragment of a left operand, or of a transposed right one.
template <int kWidth>
__device__ inline const Bf16* FragmentRow(const Bf16* tile) {
  const int lane = Lane();
  return tile + lane % 16 * kPitch<kWidth> + lane / 16 * 8;
}

/// sums[16 m x columns] += a[m] b^T: 16 rows of `a` for each m, `columns` rows of b.
template <int kWidth, int kRepeats, int kFragments>
__device__ inline void AddRowProducts(const Bf16* a, const Bf16* b,
                                      float (&sums)[kRepeats][kFragments][4]) {
  const int lane = Lane();
  const Bf16* const left = FragmentRow<kWidth>(a);
  const Bf16* const right = b + (lane % 8 + lane / 16 * 8) * kPitch<kWidth> + lane / 8 % 2 * 8;
  CF_UNROLL
  for (int k = 0; k < kWidth; k += 16) {
    uint32_t x[kRepeats][4];
    CF_UNROLL
    for (int m = 0; m < kRepeats; ++m) {
      LoadMatrices(x[m], left + m * 16 * kPitch<kWidth> + k);
    }
    CF_UNROLL
    for (int n = 0; n < kFragments; n += 2) {
      uint32_t y[4];
      LoadMatrices(y, right + n * 8 * kPitch<kWidth> + k);
      CF_UNROLL
      for (int m = 0; m < kRepeats; ++m) {
        WarpMma(sums[m][n], x[m], y[0], y[1]);
        WarpMma(sums[m][n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

/// sums[16 m x kWidth] += weights[16 m x rows] b[rows x kWidth]. The weights are in bf16, each pair
/// in the place of the pair that AddRowProducts leaves in a lane: words 0 and 1 of a fragment.
template <int kWidth, int kRepeats, int kFragments>
__device__ inline void AddWeightedRows(const uint32_t (&weights)[kRepeats][kFragments][2],
                                       const Bf16* b, float (&sums)[kRepeats][kWidth / 8][4]) {
  const Bf16* const right = FragmentRow<kWidth>(b);
  CF_UNROLL
  for (int k = 0; k < kFragments; k += 2) {
    CF_UNROLL
    for (int n = 0; n < kWidth / 8; n += 2) {
      uint32_t y[4];
      LoadTransposed(y, right + k * 8 * kPitch<kWidth> + n * 8);
      CF_UNROLL
      for (int m = 0; m < kRepeats; ++m) {
        const uint32_t x[4] = {weights[m][k][0], weights[m][k][1], weights[m][k + 1][0],
                               weights[m][k + 1][1]};
        WarpMma(sums[m][n], x, y[0], y[1]);
        WarpMma(sums[m][n + 1], x, y[2], y[3]);
      }
    }
  }
}

/// Writes a warp's sums, times `factor` of their row (by lane: rows g and g + 8 of each m), to
/// `rows` rows in global memory, by way of 16 m rows of a tile that no other warp uses.
template <int kWidth, int kRepeats>
__device__ inline void StoreRows(const float (&sums)[kRepeats][kWidth / 8][4],
                                 const float (&factor)[kRepeats][2], Bf16* tile, Bf16* to,
                                 int pitch, int rows, int width) {
  const int lane = Lane();
  const int g = lane / 4, t = lane % 4;
  __syncwarp();
  CF_UNROLL
  for (int m = 0; m < kRepeats; ++m) {
    CF_UNROLL
    for (int n = 0; n < kWidth / 8; ++n) {
      CF_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = PackBf16(sums[m][n][2 * half] * factor[m][half],
                                       sums[m][n][2 * half + 1] * factor[m][half]);
        Bf16* const at = tile + (m * 16 + half * 8 + g) * kPitch<kWidth> + n * 8 + 2 * t;
        *reinterpret_cast<uint32_t*>(at) = pair;
      }
    }
  }
  __syncwarp();
  constexpr int kPieces = kWidth / kPiece;
  for (int i = lane; i < kRepeats * 16 * kPieces; i += kWarp) {
    const int row = i / kPieces, column = i % kPieces * kPiece;
    if (row < rows && column < width) {
      *reinterpret_cast<uint4*>(to + static_cast<ptrdiff_t>(row) * pitch + column) =
          *reinterpret_cast<const uint4*>(tile + row * kPitch<kWidth> + column);
    }
  }
}

/// Calls launch<kWidth>() for the least padded width that holds head_width.
template <typename Launcher>
void ForWidth(int head_width, Launcher launcher) {
  if (head_width <= 32) return launcher(std::integral_constant<int, 32>());
  if (head_width <= 64) return launcher(std::integral_constant<int, 64>());
  if (head_width <= 96) return launcher(std::integral_constant<int, 96>());
  launcher(std::integral_constant<int, 128>());
}

}  // namespace contraflow::gpu
