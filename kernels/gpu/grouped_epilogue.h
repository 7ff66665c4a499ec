#pragma once

// Epilogues for the accumulators of a tile of a grouped product; included by experts.cu. Each kind
// is called by the consumers with a thread's accumulators.
//
// A tile of bf16 results gets to memory through shared memory, as boxes (TMA). A warp has 16 rows
// of a tile, and brings out 64 columns at a time: WaitForBox, Put by all its lanes, End.

#include "kernels/gpu/hopper.h"

namespace contraflow::gpu {

inline constexpr int kTileRows = 128, kTileColumns = 256;
/// Rows of a tile that are a warp's.
inline constexpr int kWarpRows = 16;

/// Place of a warp's part of a tile in the result, and the end of the result of its expert.
struct TilePlace {
  int expert;
  int row;       ///< of the accumulators 0 and 1 of this thread
  int rows_end;  ///< rows at and beyond are not to be touched
  int column;    ///< of the tile
};

/// Lane `lane % 4` of each four gets the values that all four have in its place: v[i] becomes lane
/// i's v[lane % 4]. The values in columns 2 (lane % 4) of four blocks of 8 columns so become 8
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

/// Bytes of shared memory in which a warp's boxes wait: two of 16 rows of 64 columns.
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

/// out[rows x columns] in bf16.
struct StoreRows {
  BoxedRows<1> out;

  __device__ void operator()(const TilePlace& at, float (&sums)[kAccumulators],
                             const WarpBoxes& boxes) const {
    CF_UNROLL
    for (int p = 0; p < kTileColumns / kBoxColumns; ++p) {
      WaitForBox<1>();
      CF_UNROLL
      for (int i = 2 * p; i < 2 * p + 2; ++i) {
        CF_UNROLL
        for (int h = 0; h < 2; ++h) {
          uint32_t v[4];
          CF_UNROLL
          for (int j = 0; j < 4; ++j) {
            const int from = 16 * i + 4 * j + 2 * h;
            v[j] = PackBf16(sums[from], sums[from + 1]);
          }
          TransposeQuad(v);
          out.Put(32 * i, h, v, boxes, p % 2);
        }
      }
      out.End(at, 0, kBoxColumns * p, boxes, p % 2);
    }
  }
};

/// The left half of a tile are columns of gate, the right half the same columns of up:
/// gate_up[rows x 2 * inner], and hidden[rows x inner] = silu(gate) * up of what is stored.
struct StoreSwiglu {
  BoxedRows<2> gate_up;
  BoxedRows<1> hidden;

  __device__ void operator()(const TilePlace& at, float (&sums)[kAccumulators],
                             const WarpBoxes& boxes) const {
    constexpr int kPanels = kTileColumns / 2 / kBoxColumns;
    CF_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      // Two boxes have place at a time: gate, up; then hidden in the place of gate.
      WaitForBox<0>();
      uint32_t product[2][2][4];
      CF_UNROLL
      for (int i = 0; i < 2; ++i) {
        CF_UNROLL
        for (int h = 0; h < 2; ++h) {
          uint32_t gate[4], up[4];
          CF_UNROLL
          for (int j = 0; j < 4; ++j) {
            const int from = 16 * (2 * p + i) + 4 * j + 2 * h;
            gate[j] = PackBf16(sums[from], sums[from + 1]);
            up[j] = PackBf16(sums[kAccumulators / 2 + from], sums[kAccumulators / 2 + from + 1]);
            const float g0 = LowHalf(gate[j]), g1 = HighHalf(gate[j]);
            product[i][h][j] =
                PackBf16(g0 * Sigmoid(g0) * LowHalf(up[j]), g1 * Sigmoid(g1) * HighHalf(up[j]));
          }
          TransposeQuad(gate);
          TransposeQuad(up);
          TransposeQuad(product[i][h]);
          gate_up.Put(32 * (2 * p + i), h, gate, boxes, 0);
          gate_up.Put(32 * (2 * p + i), h, up, boxes, 1);
        }
      }
      gate_up.End(at, 0, kBoxColumns * p, boxes, 0);
      gate_up.End(at, 1, kBoxColumns * p, boxes, 1);
      WaitForBox<1>();
      CF_UNROLL
      for (int i = 0; i < 2; ++i) {
        CF_UNROLL
        for (int h = 0; h < 2; ++h) {
          hidden.Put(32 * (2 * p + i), h, product[i][h], boxes, 0);
        }
      }
      hidden.End(at, 0, kBoxColumns * p, boxes, 0);
    }
  }
};

/// The sums are the gradient of hidden; dgate_up[rows x 2 * inner] becomes that of
/// gate_up[rows x 2 * inner].
struct StoreSwigluGradient {
  const Bf16* gate_up;
  BoxedRows<2> dgate_up;
  int inner;

  /// 8 columns of gate and of up, of two rows.
  struct Inputs {
    uint4 gate[2], up[2];
  };

  __device__ bool Inside(const TilePlace& at, int row, int column) const {
    return row < at.rows_end && column < inner;
  }
  __device__ void Load(const TilePlace& at, int column, Inputs* inputs) const {
    CF_UNROLL
    for (int h = 0; h < 2; ++h) {
      inputs->gate[h] = inputs->up[h] = make_uint4(0, 0, 0, 0);
      const int row = at.row + 8 * h;
      if (!Inside(at, row, column)) continue;
      const Bf16* from = gate_up + static_cast<int64_t>(row) * 2 * inner + column;
      inputs->gate[h] = __ldg(reinterpret_cast<const uint4*>(from));
      inputs->up[h] = __ldg(reinterpret_cast<const uint4*>(from + inner));
    }
  }
  __device__ static void Differentiate(float d, float gate, float up, float* dgate, float* dup) {
    const float s = Sigmoid(gate);
    *dup = d * gate * s;
    *dgate = d * up * s * (1.0f + gate * (1.0f - s));
  }

  __device__ void operator()(const TilePlace& at, float (&sums)[kAccumulators],
                             const WarpBoxes& boxes) const {
    const int first = at.column + 8 * static_cast<int>(threadIdx.x % 4);
    CF_UNROLL
    for (int i = 0; i < kAccumulators / 16; ++i) {
      // No registers are left to have those of the next step on their way.
      Inputs inputs;
      Load(at, first + 32 * i, &inputs);
      CF_UNROLL
      for (int h = 0; h < 2; ++h) {
        uint32_t even[4], odd[4];
        CF_UNROLL
        for (int j = 0; j < 4; ++j) {
          even[j] = std::bit_cast<uint32_t>(sums[16 * i + 4 * j + 2 * h]);
          odd[j] = std::bit_cast<uint32_t>(sums[16 * i + 4 * j + 2 * h + 1]);
        }
        TransposeQuad(even);
        TransposeQuad(odd);
        const uint4 g = inputs.gate[h], u = inputs.up[h];
        const uint32_t gate[4] = {g.x, g.y, g.z, g.w}, up[4] = {u.x, u.y, u.z, u.w};
        uint32_t dgate[4], dup[4];
        CF_UNROLL
        for (int j = 0; j < 4; ++j) {
          float low_gate, low_up, high_gate, high_up;
          Differentiate(std::bit_cast<float>(even[j]), LowHalf(gate[j]), LowHalf(up[j]), &low_gate,
                        &low_up);
          Differentiate(std::bit_cast<float>(odd[j]), HighHalf(gate[j]), HighHalf(up[j]),
                        &high_gate, &high_up);
          dgate[j] = PackBf16(low_gate, high_gate);
          dup[j] = PackBf16(low_up, high_up);
        }
        if (i % 2 == 0 && h == 0) WaitForBox<0>();
        dgate_up.Put(32 * i, h, dgate, boxes, 0);
        dgate_up.Put(32 * i, h, dup, boxes, 1);
      }
      if (i % 2 == 1) {
        dgate_up.End(at, 0, 32 * (i - 1), boxes, 0);
        dgate_up.End(at, 1, 32 * (i - 1), boxes, 1);
      }
    }
  }
};

/// out[experts x rows x columns] += the sums, in the L2: nothing is read back, and as a tile has
/// its elements to itself each gets one addition.
struct AddInPlace {
  TensorMap map;  ///< of boxes of 32 columns x 16 rows

  __device__ void operator()(const TilePlace& at, float (&sums)[kAccumulators],
                             const WarpBoxes& boxes) const {
    constexpr int kColumns = kBoxRowBytes / sizeof(float);
    const int row = boxes.lane / 4, quad = boxes.lane % 4;
    CF_UNROLL
    for (int p = 0; p < kTileColumns / kColumns; ++p) {
      const int box = p % 2;
      WaitForBox<1>();
      CF_UNROLL
      for (int j = 0; j < kColumns / 8; ++j) {
        CF_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int from = 16 * p + 4 * j + 2 * h;
          unsigned char* const chunk = BoxChunk(boxes, box, row + 8 * h, 2 * j + quad / 2);
          StoreShared(chunk + quad % 2 * 8, make_uint2(std::bit_cast<uint32_t>(sums[from]),
                                                       std::bit_cast<uint32_t>(sums[from + 1])));
        }
      }
      AsyncFence();
      __syncwarp();
      if (boxes.lane == 0) {
        AddBox(map, at.column + kColumns * p, at.row - row, at.expert,
               boxes.begin + box * kBoxBytes);
        StoreCommit();
      }
    }
  }
};

}  // namespace contraflow::gpu
