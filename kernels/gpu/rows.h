#pragma once

// How kernels share out the rows of matrices. Included by .cu files only.
//
// Elementwise kernels (kRowsBlock): a warp takes kVectorsAtOnce vectors of a lane from one row,
// then the same columns of a row further down. Kernels that go by a list of rows (kRowThreads): a
// warp takes a row or a token, and its lanes the vectors of that.

#include <algorithm>

#include "kernels/gpu/vector.h"

namespace contraflow::gpu {

inline constexpr int kRowsBlock = 256;
inline constexpr int kVectorsAtOnce = 4;

/// Blocks of kRowsBlock threads for `rows` rows of `width` in vectors of N: blockIdx.x takes rows,
/// blockIdx.y columns. `resident` is how many of them an SM holds at a time.
template <int N>
dim3 RowsGrid(Stream stream, int resident, int rows, int width) {
  const int columns = CeilDiv(width, N * kWarp * kVectorsAtOnce);
  const int most = CeilDiv(stream.sms * resident, columns);
  return dim3(Unsigned(std::min(CeilDiv(rows, kRowsBlock / kWarp), most)), Unsigned(columns));
}

__device__ inline int FirstRow() {
  return BlockIndex() * (kRowsBlock / kWarp) + ThreadIndex() / kWarp;
}
__device__ inline int RowStep() { return BlockCount() * (kRowsBlock / kWarp); }
/// Start of vector i (0..kVectorsAtOnce) of this thread in each of its rows; it may lie past the
/// end.
template <int N>
__device__ inline int Column(int i) {
  const int first = static_cast<int>(blockIdx.y) * kVectorsAtOnce;
  return ((first + i) * kWarp + Lane()) * N;
}

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarp;
/// Blocks of kRowThreads that an SM can hold at once: a thread may have 64 registers.
inline constexpr int kRowBlocks = 4;
/// Values of a row that a lane moves at once where they are aligned to that.
inline constexpr int kWide = 8;

/// Blocks for work of a warp each: as many as the stream's SMs hold at once, each warp going on
/// until nothing is left.
inline unsigned BlocksForWarps(Stream stream, int items) {
  const int most = std::max(stream.sms, 1) * kRowBlocks;
  return Unsigned(std::clamp(CeilDiv(items, kRowWarps), 1, most));
}

/// Number of the running warp in the grid, and how many there are.
__device__ inline int WarpInGrid() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
}
__device__ inline int WarpsOfGrid() { return static_cast<int>(gridDim.x * blockDim.x) / kWarp; }

/// to[width] = from[width] by the running warp; several vectors of a lane are under way at a time.
template <int N>
__device__ inline void CopyRow(const Bf16* from, Bf16* to, int width) {
  constexpr int kUnderWay = 8, kStep = kWarp * N;
  for (int begin = Lane() * N; begin < width; begin += kStep * kUnderWay) {
    Bf16s<N> held[kUnderWay] = {};
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (begin + i * kStep < width) held[i] = Load<N>(from + begin + i * kStep);
    }
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (begin + i * kStep < width) Store<N>(to + begin + i * kStep, held[i]);
    }
  }
}

/// to[width] = 0 by the running warp.
template <int N>
__device__ inline void ZeroRow(Bf16* to, int width) {
  for (int at = Lane() * N; at < width; at += kWarp * N) Store<N>(to + at, Bf16s<N>{});
}

/// The rows of token -1 become 0. A warp looks at the tokens of 32 rows at a time.
template <int N>
__device__ inline void ZeroEmptyRows(const int32_t* token_of, int sorted_rows, int width,
                                     Bf16* sorted) {
  for (int begin = WarpInGrid() * kWarp; begin < sorted_rows; begin += WarpsOfGrid() * kWarp) {
    const int row = begin + Lane();
    unsigned empty = __ballot_sync(~0u, row < sorted_rows && token_of[row] < 0);
    for (; empty != 0; empty &= empty - 1) {
      const int next = begin + __ffs(static_cast<int>(empty)) - 1;
      ZeroRow<N>(Row(sorted, next, width), width);
    }
  }
}

}  // namespace contraflow::gpu
