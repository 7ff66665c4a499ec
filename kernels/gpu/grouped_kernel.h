#pragma once

// The grouped product of experts: one kernel template, which the layer is made of; included by
// experts.cu.
//
// A block is a producer and two consumer warpgroups, and stays for as many tiles as fall to it. The
// producer loads slabs of 64 of the summed dimension into a ring of stages; the consumers multiply
// them, each its 64 of the tile's 128 rows by all 256 columns, and store the tile while the
// producer is already loading the next one.
//
//               full[s]: the bytes have come
//   producer  ---------------------------------->  consumers
//             <----------------------------------
//               empty[s]: each of the 8 warps is done with them
//
// In pairs, the two blocks of a cluster work on two rows of tiles of one expert at the same column,
// so that they need the same slabs of B. Each loads half of every slab into both, once the
// consumers of both have given the stage back (empty[s] counts 16 warps). If an expert has an odd
// number of rows of tiles, the second block passes slabs on to nobody: it loads its half and gives
// stages back.
//
// Rows of a tile beyond its expert's are computed from whatever rows come next, and dropped: a row
// of a product depends on no other. If rows are what is summed over (weight gradients), those of
// the last slab that are not the expert's are cleared in shared memory first.

#include "kernels/gpu/grouped_epilogue.h"
#include "kernels/gpu/hopper.h"
#include "kernels/gpu/tile_schedule.h"

namespace contraflow::gpu {

inline constexpr int kSlab = 64;
inline constexpr int kStages = 4;
inline constexpr int kConsumers = 2 * kWarpgroup, kConsumerWarps = kConsumers / kWarp;
inline constexpr int kGroupedThreads = kWarpgroup + kConsumers;
/// 64 x 64 bf16: what an operand that is not K-major is made of.
inline constexpr int kPanelBytes = kSlab * kBoxRowBytes;
inline constexpr int kABytes = kTileRows * kSlab * 2, kBBytes = kTileColumns * kSlab * 2;
inline constexpr int kStageBytes = kABytes + kBBytes;

struct GroupedShared {
  unsigned char stages[kStages][kStageBytes];  ///< of A, then of B
  unsigned char boxes[kConsumerWarps][2 * kBoxBytes];
  Mbarrier full[kStages], empty[kStages];
  Mbarrier cleared[kStages];  ///< of rows that are another expert's
};

/// How the operands of a product lie, and what is summed over.
enum class Form : uint8_t {
  kWeights,       ///< rows [R x K] by weights [E x K x N]
  kWeightHalves,  ///< likewise; a tile has 128 of the first N / 2 columns and the same of the rest
  kTransposedWeights,  ///< rows [R x K] by the transposes of weights [E x N x K]
  kRows,  ///< out[E x M x N] from rows [R x M] and [R x N], summed over an expert's rows
};

struct GroupedSizes {
  TileGrid tiles;
  int depth;    ///< K; unused where rows are summed over
  int columns;  ///< N
  int rows;     ///< M where rows are summed over
};

/// A place in the ring, and which time round it is.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline int RowsOf(const GroupedSizes& sizes, int expert) {
  return sizes.tiles.first[expert + 1] - sizes.tiles.first[expert];
}

template <Form form>
__device__ int SlabsOf(const GroupedSizes& sizes, int expert) {
  if constexpr (form == Form::kRows) {
    return CeilDiv(RowsOf(sizes, expert), kSlab);
  } else {
    return CeilDiv(sizes.depth, kSlab);
  }
}

/// First column of a panel of B.
template <Form form>
__device__ int PanelColumn(const GroupedSizes& sizes, const Tile& tile, int panel) {
  if constexpr (form == Form::kWeightHalves) {
    constexpr int kHalf = kTileColumns / kBoxColumns / 2;
    return tile.column * (kTileColumns / 2) + panel % kHalf * kBoxColumns +
           panel / kHalf * (sizes.columns / 2);
  } else {
    return tile.column * kTileColumns + panel * kBoxColumns;
  }
}

/// Loads this block's share of B into the shared memory of all `kBlocks` blocks.
template <int kBlocks>
__device__ void LoadShare(unsigned char* to, const TensorMap& map, int column, int row, int matrix,
                          Mbarrier* full) {
  if constexpr (kBlocks == 1) {
    LoadBox(to, map, column, row, matrix, full);
  } else {
    LoadBoxToBlocks(to, map, column, row, matrix, full, (1u << kBlocks) - 1);
  }
}

/// An idle block gets no A.
template <Form form, int kBlocks>
__device__ void LoadSlab(const TensorMap& a_map, const TensorMap& b_map, const GroupedSizes& sizes,
                         const Tile& tile, bool idle, int slab, unsigned char* a, Mbarrier* full) {
  unsigned char* const b = a + kABytes;
  const int row =
      sizes.tiles.first[tile.expert] + (form == Form::kRows ? slab * kSlab : tile.row * kTileRows);
  MbarrierExpect(full, idle ? kBBytes : kStageBytes);
  if (idle) {
  } else if constexpr (form == Form::kRows) {
    for (int p = 0; p < kTileRows / kBoxColumns; ++p) {
      LoadBox(a + p * kPanelBytes, a_map, tile.row * kTileRows + p * kBoxColumns, row, 0, full);
    }
  } else {
    LoadBox(a, a_map, slab * kSlab, row, 0, full);
  }
  const int rank = BlockIndex() % kBlocks;
  if constexpr (form == Form::kTransposedWeights) {
    constexpr int kShare = kTileColumns / kBlocks;
    LoadShare<kBlocks>(b + rank * kShare * kBoxRowBytes, b_map, slab * kSlab,
                       tile.column * kTileColumns + rank * kShare, tile.expert, full);
  } else {
    constexpr int kShare = kTileColumns / kBoxColumns / kBlocks;
    for (int p = rank * kShare; p < (rank + 1) * kShare; ++p) {
      const int column = PanelColumn<form>(sizes, tile, p);
      if constexpr (form == Form::kRows) {
        LoadShare<kBlocks>(b + p * kPanelBytes, b_map, column, row, 0, full);
      } else {
        LoadShare<kBlocks>(b + p * kPanelBytes, b_map, column, slab * kSlab, tile.expert, full);
      }
    }
  }
}

/// The place of row `row` of a tile.
template <Form form>
__device__ TilePlace PlaceOf(const GroupedSizes& sizes, const Tile& tile, int row) {
  constexpr int kColumns = form == Form::kWeightHalves ? kTileColumns / 2 : kTileColumns;
  const int in_expert = tile.row * kTileRows + row, column = tile.column * kColumns;
  if constexpr (form == Form::kRows) {
    return {tile.expert, in_expert, sizes.rows, column};
  } else {
    const int32_t* const first = sizes.tiles.first + tile.expert;
    return {tile.expert, first[0] + in_expert, first[1], column};
  }
}

/// The tiles of this block. The blocks of a cluster have the same, each its row of tiles: one more
/// than there are is for nobody.
template <Form form, int kBlocks>
class BlockWalk {
 public:
  __device__ explicit BlockWalk(const GroupedSizes& sizes)
      : sizes_(sizes),
        walk_(sizes.tiles, BlockIndex() / kBlocks, BlockCount() / kBlocks,
              TileWalk::kBand / kBlocks) {}

  __device__ bool Next(Tile* tile) {
    if (!walk_.Next(tile)) return false;
    tile->row = tile->row * kBlocks + BlockIndex() % kBlocks;
    return true;
  }
  /// Whether what a consumer has of a tile is nobody's; if that is so of the first, of all.
  __device__ bool Idle(const Tile& tile, int group = 0) const {
    const int rows = form == Form::kRows ? sizes_.rows : RowsOf(sizes_, tile.expert);
    return tile.row * kTileRows + group * (kTileRows / 2) >= rows;
  }

 private:
  const GroupedSizes& sizes_;
  TileWalk walk_;
};

/// One warp.
template <Form form, int kBlocks>
__device__ void Produce(const TensorMap& a_map, const TensorMap& b_map, const GroupedSizes& sizes,
                        GroupedShared* shared) {
  BlockWalk<form, kBlocks> walk(sizes);
  Tile tile;
  Turn turn;
  while (walk.Next(&tile)) {
    const int slabs = SlabsOf<form>(sizes, tile.expert);
    for (int slab = 0; slab < slabs; ++slab, turn.Next()) {
      // The first time round the stages are empty: the phase before the first counts as over.
      MbarrierWait(&shared->empty[turn.stage], turn.parity ^ 1);
      if (threadIdx.x == 0) {
        LoadSlab<form, kBlocks>(a_map, b_map, sizes, tile, walk.Idle(tile), slab,
                                shared->stages[turn.stage], &shared->full[turn.stage]);
      }
      __syncwarp();
    }
  }
}

/// The first consumer clears rows `begin` .. 64 of a stage whose slab is rows. Whole rows of 128
/// bytes, so that the swizzle, which stays in a row, does not matter.
__device__ inline void ClearRows(unsigned char* stage, int begin, Mbarrier* cleared) {
  constexpr int kChunk = 16, kChunks = kBoxRowBytes / kChunk;
  const int rows = kSlab - begin;
  const int self = ThreadIndex() - kWarpgroup;
  for (int i = self; i < kStageBytes / kPanelBytes * rows * kChunks; i += kWarpgroup) {
    const int panel = i / (rows * kChunks), row = begin + i / kChunks % rows;
    StoreShared(stage + panel * kPanelBytes + row * kBoxRowBytes + i % kChunks * kChunk,
                make_uint4(0, 0, 0, 0));
  }
  AsyncFence();
  WarpgroupBarrier(1, kWarpgroup);
  if (self == 0) MbarrierArrive(cleared);
}

template <Form form>
__device__ void MultiplySlab(const unsigned char* stage, int group, bool add,
                             float (&sums)[kAccumulators]) {
  constexpr bool kAMn = form == Form::kRows, kBMn = form != Form::kTransposedWeights;
  // In an operand that is K-major, 16 k further are 32 bytes along the row, and where its next 64 k
  // would be does not matter; else they are two atoms, and there are panels of 64 columns.
  constexpr uint32_t kKStep = kWgmmaDepth * 2, kMnStep = 2 * kAtomBytes;
  constexpr uint32_t kAStep = kAMn ? kMnStep : kKStep, kBStep = kBMn ? kMnStep : kKStep;
  constexpr uint32_t kALeading = kAMn ? kPanelBytes : 16, kBLeading = kBMn ? kPanelBytes : 16;
  const uint32_t a = SharedAddress(stage) + static_cast<uint32_t>(group * kPanelBytes);
  const uint32_t b = SharedAddress(stage) + static_cast<uint32_t>(kABytes);
  WgmmaFence(sums);
  CF_UNROLL
  for (uint32_t k = 0; k < kSlab / kWgmmaDepth; ++k) {
    Wgmma<kAMn, kBMn>(sums, MatrixDescriptor(a + k * kAStep, kALeading, kAtomBytes),
                      MatrixDescriptor(b + k * kBStep, kBLeading, kAtomBytes), add || k > 0);
  }
  WgmmaCommit();
}

/// A warp is done with a stage.
template <int kBlocks>
__device__ void GiveBack(Mbarrier* empty) {
  if constexpr (kBlocks == 1) {
    if (Lane() == 0) MbarrierArrive(empty);
  } else {
    if (Lane() < kBlocks) MbarrierArriveAt(empty, static_cast<unsigned>(Lane()));
  }
}

template <Form form, int kBlocks, typename Epilogue>
__device__ void Consume(const GroupedSizes& sizes, const Epilogue& epilogue,
                        GroupedShared* shared) {
  const int thread = ThreadIndex(), lane = thread % kWarp;
  // So the compiler sees that a warp has one: products under way may not be where lanes part.
  const int group = __shfl_sync(~0u, thread / kWarpgroup - 1, 0);
  BlockWalk<form, kBlocks> walk(sizes);
  Tile tile = {};
  Turn turn;
  float sums[kAccumulators];
  [[maybe_unused]] unsigned cleared = 0;  // a bit for each stage: the parity of the next clearing
  // The first consumer clears the rest of an expert's last slab; the second waits until it is done.
  const auto clear_rest = [&](int slab) {
    if constexpr (form == Form::kRows) {
      const int left = RowsOf(sizes, tile.expert) - slab * kSlab;
      if (left >= kSlab) return;
      Mbarrier* const barrier = &shared->cleared[turn.stage];
      if (group == 0) {
        ClearRows(shared->stages[turn.stage], left, barrier);
      } else {
        MbarrierWait(barrier, cleared >> turn.stage & 1);
      }
      cleared ^= 1u << turn.stage;
    }
  };
  while (walk.Next(&tile)) {
    const int slabs = SlabsOf<form>(sizes, tile.expert);
    if (walk.Idle(tile, group)) {
      for (int slab = 0; slab < slabs; ++slab, turn.Next()) {
        MbarrierWait(&shared->full[turn.stage], turn.parity);
        if (!walk.Idle(tile)) clear_rest(slab);
        // No lane may wait for a phase that others have let go by.
        __syncwarp();
        GiveBack<kBlocks>(&shared->empty[turn.stage]);
      }
      continue;
    }
    int before = 0;  // the stage of the slab before
    for (int slab = 0; slab < slabs; ++slab, turn.Next()) {
      MbarrierWait(&shared->full[turn.stage], turn.parity);
      clear_rest(slab);
      MultiplySlab<form>(shared->stages[turn.stage], group, slab > 0, sums);
      // The matrix units go on with this slab while the one before is given back.
      WgmmaWait<1>(sums);
      if (slab > 0) GiveBack<kBlocks>(&shared->empty[before]);
      before = turn.stage;
    }
    WgmmaWait<0>(sums);
    GiveBack<kBlocks>(&shared->empty[before]);
    // Read anew: addresses that were kept since the last tile would be too many registers.
    const int self = ThreadIndexAnew() - kWarpgroup, warp = self / kWarp;
    epilogue(PlaceOf<form>(sizes, tile, warp * kWarpRows + self % kWarp / 4), sums,
             {shared->boxes[warp], self % kWarp});
  }
  if (lane == 0) StoreWaitAll();
}

template <Form form, int kBlocks, typename Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    GroupedKernel(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                  const GroupedSizes sizes, const __grid_constant__ Epilogue epilogue) {
  CF_DYNAMIC_SHARED(GroupedShared, shared);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      MbarrierInit(&shared->full[s], 1);
      MbarrierInit(&shared->empty[s], kBlocks * kConsumerWarps);
      MbarrierInit(&shared->cleared[s], 1);
    }
    MbarrierInitFence();
  }
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    // The other block may be the first to use them.
    SyncCluster();
  }
  // The producer needs few registers, the consumers 128 for the sums alone. Together they have what
  // the three warpgroups began with, 168 a thread.
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<56>();
    if (threadIdx.x < kWarp) Produce<form, kBlocks>(a_map, b_map, sizes, shared);
  } else {
    TakeRegisters<224>();
    Consume<form, kBlocks>(sizes, epilogue, shared);
  }
  // The other block may not have given back all stages yet, and does it in the memory of this one.
  if constexpr (kBlocks > 1) SyncCluster();
}

}  // namespace contraflow::gpu
