#pragma once

// How a tile of bf16 results gets to memory: through shared memory, as boxes (TMA). A warp has 16
// rows of a tile, and brings out 64 columns at a time: WaitForBox, Put by all its lanes, End.
// Included by grouped_epilogue.h.

#include "kernels/gpu/hopper.h"

namespace contraflow::gpu {

inline constexpr int kTileRows = 128, kTileColumns = 256;
/// Rows of a tile that are a warp's.
inline constexpr int kWarpRows = 16;

/// Where a warp's part of a tile lies in the result, and where the result of its expert ends.
struct TilePlace {
  int expert;
  int row;       ///< of the accumulators 0 and 1 of this thread
  int rows_end;  ///< rows at and beyond are not to be touched
  int column;    ///< of the tile
};

/// Lane `lane % 4` of each four gets the values that all four have in its place: v[i] becomes lane
/// i's v[lane % 4]. What lies in columns 2 (lane % 4) of four blocks of 8 columns so becomes 8
/// columns of the block lane % 4: 16 bytes of bf16 at once.
__device__ inline void TransposeQuad(uint32_t (&v)[4]) {
  const unsigned lane = threadIdx.x % kWarp;
  CF_UNROLL
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane & static_cast<unsigned>(step)) != 0;
    CF_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? v[i] : v[i + step], step);
      (upper ? v[i] : v[i + step]) = got;
    }
  }
}

/// What a warp's boxes wait in, in shared memory: two of 16 rows of 64 columns.
inline constexpr int kBoxBytes = kWarpRows * kBoxRowBytes;
struct WarpBoxes {
  unsigned char* begin;
  int lane;
};

/// In the swizzle of boxes: chunks of 16 bytes change their places with the row.
__device__ inline unsigned char* BoxChunk(const WarpBoxes& boxes, int box, int row, int chunk) {
  return boxes.begin + box * kBoxBytes + row * kBoxRowBytes + (chunk ^ row % 8) * 16;
}

/// Waits until all but the `kUnread` youngest boxes of a warp have left shared memory, and all
/// lanes are done with theirs.
template <int kUnread>
__device__ void WaitForBox() {
  if (Lane() == 0) StoreWaitRead<kUnread>();
  __syncwarp();
}

/// out[rows x parts x columns].
template <int kParts>
struct BoxedRows {
  TensorMap map;  ///< of boxes of 64 columns x 1 part x 16 rows
  Bf16* out;
  int columns;

  /// Row at.row + 8 h, 8 columns from `column` + 8 (lane % 4) of the tile on.
  __device__ void Put(int column, int h, const uint32_t (&v)[4], const WarpBoxes& boxes,
                      int box) const {
    // Rows of a lane differ by 8, so that both have their chunks in the same places.
    const int lane = boxes.lane, chunk = column % kBoxColumns / 8;
    StoreShared(BoxChunk(boxes, box, lane / 4, chunk ^ lane % 4) + 8 * h * kBoxRowBytes,
                make_uint4(v[0], v[1], v[2], v[3]));
  }
  /// A box that reaches beyond the rows of its expert is copied by the threads: what follows are
  /// another expert's.
  __device__ void End(const TilePlace& at, int part, int column, const WarpBoxes& boxes,
                      int box) const {
    AsyncFence();
    __syncwarp();
    const int first = at.row - boxes.lane / 4;
    const bool whole = first + kWarpRows <= at.rows_end;
    if (boxes.lane == 0) {
      if (whole) StoreBox(map, at.column + column, part, first, boxes.begin + box * kBoxBytes);
      // Or an empty group: WaitForBox counts boxes by groups.
      StoreCommit();
    }
    if (whole) return;
    const int rows_left = at.rows_end - first, to = at.column + column + 8 * (boxes.lane % 8);
    for (int r = boxes.lane / 8; r < rows_left; r += 4) {
      if (to >= columns) continue;
      Store16(out + (static_cast<int64_t>(first + r) * kParts + part) * columns + to,
              Load16(BoxChunk(boxes, box, r, boxes.lane % 8)));
    }
  }
};

}  // namespace contraflow::gpu
