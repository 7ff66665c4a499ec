#pragma once

// What the attention kernels are made of: tiles of rows of one head in shared memory, and products
// of them by warps, 16 rows of the left operand to a warp. A tile's rows have kWidth elements, the
// head's width padded with zeros, and 16 bytes more, which keeps ldmatrix free of bank conflicts.
// Included by .cu files only.

#include "kernels/attention/async_copy.h"
#include "kernels/attention/warp_mma.h"
#include "kernels/host/attention.h"

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
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kPieces, column = i % kPieces * kPiece;
    const bool valid = row < rows && column < width;
    AsyncCopy<16>(tile + row * kPitch<kWidth> + column,
                  valid ? from + static_cast<ptrdiff_t>(row) * pitch + column : from, valid);
  }
}

/// The lane's row of a fragment of a left operand, or of a transposed right one.
template <int kWidth>
__device__ inline const Bf16* FragmentRow(const Bf16* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return tile + lane % 16 * kPitch<kWidth> + lane / 16 * 8;
}

/// sums[16 m x columns] += a[m] b^T: 16 rows of `a` for each m, `columns` rows of b.
template <int kWidth, int kRepeats, int kFragments>
__device__ inline void AddRowProducts(const Bf16* a, const Bf16* b,
                                      float (&sums)[kRepeats][kFragments][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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
