#pragma once

// How elementwise kernels share out the rows of a matrix: a warp takes kVectorsAtOnce vectors of a
// lane from one row, then the same columns of a row further down. Included by .cu files only.

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
/// Where vector i (0..kVectorsAtOnce) of this thread begins in each of its rows; it may lie behind
/// the end.
template <int N>
__device__ inline int Column(int i) {
  const int first = static_cast<int>(blockIdx.y) * kVectorsAtOnce;
  return ((first + i) * kWarp + ThreadIndex() % kWarp) * N;
}

}  // namespace contraflow::gpu
