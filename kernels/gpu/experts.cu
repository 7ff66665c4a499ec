#include "kernels/gpu/experts.h"
#include "kernels/gpu/grouped_epilogue.h"
#include "kernels/gpu/hopper.h"
#include "kernels/gpu/tile_schedule.h"

// The grouped product of experts: one kernel template, which the layer is made of.
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
// One consumer keeps ahead of the other by some slabs, so that each stores its half of a tile while
// the other multiplies, and the matrix units need not wait.
//
// Rows of a tile beyond its expert's are computed from whatever rows come next, and dropped: a row
// of a product depends on no other. Where rows are what is summed over (weight gradients), those
// of the last slab that are not the expert's are cleared in shared memory first.

namespace contraflow::gpu {
namespace {

constexpr int kSlab = 64;
constexpr int kStages = 4;
constexpr int kConsumers = 2 * kWarpgroup, kConsumerWarps = kConsumers / kWarp;
/// Slabs that the first consumer begins before the second does. Those between the two stay in the
/// ring, and the rest of it has to cover the time that a load takes.
constexpr int kHeadStart = 2;
constexpr int kGroupedThreads = kWarpgroup + kConsumers;
/// 64 x 64 bf16: what an operand that is not K-major is made of.
constexpr int kPanelBytes = kSlab * kBoxRowBytes;
constexpr int kABytes = kTileRows * kSlab * 2, kBBytes = kTileColumns * kSlab * 2;
constexpr int kStageBytes = kABytes + kBBytes;

struct GroupedShared {
  unsigned char stages[kStages][kStageBytes];  ///< of A, then of B
  Mbarrier full[kStages], empty[kStages];
  Mbarrier begun;  ///< the first consumer has its head start
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

__device__ int RowsOf(const GroupedSizes& sizes, int expert) {
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

template <Form form>
__device__ void LoadSlab(const TensorMap& a_map, const TensorMap& b_map, const GroupedSizes& sizes,
                         const Tile& tile, int slab, unsigned char* a, Mbarrier* full) {
  unsigned char* const b = a + kABytes;
  const int row =
      sizes.tiles.first[tile.expert] + (form == Form::kRows ? slab * kSlab : tile.row * kTileRows);
  MbarrierExpect(full, kStageBytes);
  if constexpr (form == Form::kRows) {
    for (int p = 0; p < kTileRows / kBoxColumns; ++p) {
      LoadBox(a + p * kPanelBytes, a_map, tile.row * kTileRows + p * kBoxColumns, row, 0, full);
    }
  } else {
    LoadBox(a, a_map, slab * kSlab, row, 0, full);
  }
  if constexpr (form == Form::kTransposedWeights) {
    LoadBox(b, b_map, slab * kSlab, tile.column * kTileColumns, tile.expert, full);
  } else {
    for (int p = 0; p < kTileColumns / kBoxColumns; ++p) {
      const int column = PanelColumn<form>(sizes, tile, p);
      if constexpr (form == Form::kRows) {
        LoadBox(b + p * kPanelBytes, b_map, column, row, 0, full);
      } else {
        LoadBox(b + p * kPanelBytes, b_map, column, slab * kSlab, tile.expert, full);
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

/// One warp.
template <Form form, typename Epilogue>
__device__ void Produce(const TensorMap& a_map, const TensorMap& b_map, const GroupedSizes& sizes,
                        const Epilogue& epilogue, GroupedShared* shared) {
  TileWalk walk(sizes.tiles, BlockIndex(), BlockCount());
  Tile tile;
  Turn turn;
  while (walk.Next(&tile)) {
    const int slabs = SlabsOf<form>(sizes, tile.expert);
    for (int slab = 0; slab < slabs; ++slab, turn.Next()) {
      // The first time round the stages are empty: the phase before the first counts as over.
      MbarrierWait(&shared->empty[turn.stage], turn.parity ^ 1);
      if (threadIdx.x == 0) {
        LoadSlab<form>(a_map, b_map, sizes, tile, slab, shared->stages[turn.stage],
                       &shared->full[turn.stage]);
      }
      __syncwarp();
      if (slab == 0) epilogue.Prefetch(PlaceOf<form>(sizes, tile, 0));
    }
  }
}

/// Clears rows `begin` .. 64 of a stage whose slab is rows. Whole rows of 128 bytes, so that the
/// swizzle, which stays in a row, does not matter.
__device__ void ClearRows(unsigned char* stage, int begin) {
  constexpr int kChunk = 16, kChunks = kBoxRowBytes / kChunk;
  const int rows = kSlab - begin;
  const int self = ThreadIndex() - kWarpgroup;
  for (int i = self; i < kStageBytes / kPanelBytes * rows * kChunks; i += kConsumers) {
    const int panel = i / (rows * kChunks), row = begin + i / kChunks % rows;
    StoreZero(stage + panel * kPanelBytes + row * kBoxRowBytes + i % kChunks * kChunk);
  }
  AsyncFence();
  WarpgroupBarrier(1, kConsumers);
}

template <Form form>
__device__ void MultiplySlab(const unsigned char* stage, int group, bool add,
                             float (&sums)[kAccumulators]) {
  constexpr bool kAMn = form == Form::kRows, kBMn = form != Form::kTransposedWeights;
  // Of an operand that is K-major, 16 k further are 32 bytes along the row, and where its next 64 k
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

template <Form form, typename Epilogue>
__device__ void Consume(const GroupedSizes& sizes, const Epilogue& epilogue,
                        GroupedShared* shared) {
  const int thread = ThreadIndex(), lane = thread % kWarp;
  const int group = thread / kWarpgroup - 1;
  const int own_row = group * (kTileRows / 2) + thread % kWarpgroup / kWarp * 16 + lane / 4;
  TileWalk walk(sizes.tiles, BlockIndex(), BlockCount());
  Tile tile;
  Turn turn;
  float sums[kAccumulators];
  // Where rows are cleared the consumers do that together.
  constexpr bool kAhead = form != Form::kRows;
  int begun = 0;  // slabs of the first consumer, up to its head start
  if (kAhead && group == 1) MbarrierWait(&shared->begun, 0);
  while (walk.Next(&tile)) {
    const int slabs = SlabsOf<form>(sizes, tile.expert);
    [[maybe_unused]] const int rows = RowsOf(sizes, tile.expert);
    int before = 0;  // the stage of the slab before
    for (int slab = 0; slab < slabs; ++slab, turn.Next()) {
      unsigned char* const stage = shared->stages[turn.stage];
      MbarrierWait(&shared->full[turn.stage], turn.parity);
      if constexpr (form == Form::kRows) {
        const int left = rows - slab * kSlab;
        if (left < kSlab) ClearRows(stage, left);
      }
      MultiplySlab<form>(stage, group, slab > 0, sums);
      if (kAhead && group == 0 && begun < kHeadStart && ++begun == kHeadStart && lane == 0) {
        MbarrierArrive(&shared->begun);
      }
      // The matrix units go on with this slab while the one before is given back.
      WgmmaWait<1>(sums);
      if (slab > 0 && lane == 0) MbarrierArrive(&shared->empty[before]);
      before = turn.stage;
    }
    WgmmaWait<0>(sums);
    if (lane == 0) MbarrierArrive(&shared->empty[before]);
    epilogue(PlaceOf<form>(sizes, tile, own_row), sums);
  }
  // There may have been fewer.
  if (kAhead && group == 0 && begun < kHeadStart && lane == 0) MbarrierArrive(&shared->begun);
}

template <Form form, typename Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    GroupedKernel(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                  const GroupedSizes sizes, const Epilogue epilogue) {
  CF_DYNAMIC_SHARED(GroupedShared, shared);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      MbarrierInit(&shared->full[s], 1);
      MbarrierInit(&shared->empty[s], kConsumerWarps);
    }
    MbarrierInit(&shared->begun, kConsumerWarps / 2);
    MbarrierInitFence();
  }
  __syncthreads();
  // The producer needs few registers, the consumers 128 for the sums alone. Together they have what
  // the three warpgroups began with, 168 a thread.
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<56>();
    if (threadIdx.x < kWarp) Produce<form>(a_map, b_map, sizes, epilogue, shared);
  } else {
    TakeRegisters<224>();
    Consume<form>(sizes, epilogue, shared);
  }
}

/// Launches at most one block an SM, and no more than there can be tiles.
template <Form form, typename Epilogue>
void LaunchGrouped(const char* name, Stream stream, const ExpertsSizes& sizes,
                   const GroupedSizes& product, const TensorMap& a, const TensorMap& b,
                   const Epilogue& epilogue) {
  const TileGrid& tiles = product.tiles;
  const int64_t rows_of_tiles = tiles.height == 0
                                    ? int64_t{sizes.experts} * tiles.rows
                                    : int64_t{sizes.most_rows} / tiles.height + sizes.experts;
  const int64_t blocks = std::min<int64_t>(stream.sms, rows_of_tiles * tiles.columns);
  Launch(name, stream, static_cast<unsigned>(blocks), kGroupedThreads, sizeof(GroupedShared),
         GroupedKernel<form, Epilogue>, a, b, product, epilogue);
}

TensorMap MapRows(const Bf16* rows, const ExpertsSizes& sizes, int width, int box_rows) {
  return MapTensor(rows, static_cast<uint64_t>(width), static_cast<uint64_t>(sizes.most_rows), 1,
                   static_cast<uint32_t>(box_rows));
}
TensorMap MapWeights(const Bf16* weights, const ExpertsSizes& sizes, int in, int out,
                     int box_rows) {
  return MapTensor(weights, static_cast<uint64_t>(out), static_cast<uint64_t>(in),
                   static_cast<uint64_t>(sizes.experts), static_cast<uint32_t>(box_rows));
}

/// rows [R x in] by weights [E x in x out], or their transposes [E x out x in].
template <Form form, typename Epilogue>
void Multiply(const char* name, Stream stream, const ExpertsSizes& sizes, const int32_t* first,
              const Bf16* rows, const Bf16* weights, int in, int out, const Epilogue& epilogue) {
  const TileGrid tiles = {first, sizes.experts, kTileRows, 0, CeilDiv(out, kTileColumns)};
  const TensorMap a = MapRows(rows, sizes, in, kTileRows);
  const TensorMap b = form == Form::kTransposedWeights
                          ? MapWeights(weights, sizes, out, in, kTileColumns)
                          : MapWeights(weights, sizes, in, out, kSlab);
  LaunchGrouped<form>(name, stream, sizes, {tiles, in, out, 0}, a, b, epilogue);
}

/// gradient [E x in x out] += x^T dy.
void AddProduct(const char* name, Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                const Bf16* x, const Bf16* dy, int in, int out, float* gradient) {
  const TileGrid tiles = {first, sizes.experts, 0, CeilDiv(in, kTileRows),
                          CeilDiv(out, kTileColumns)};
  LaunchGrouped<Form::kRows>(name, stream, sizes, {tiles, 0, out, in}, MapRows(x, sizes, in, kSlab),
                             MapRows(dy, sizes, out, kSlab), AddInPlace{gradient, in, out});
}

bool Empty(const ExpertsSizes& sizes) {
  return sizes.experts <= 0 || sizes.most_rows <= 0 || sizes.width <= 0 || sizes.inner <= 0;
}

}  // namespace

void ExpertsForward(Stream stream, const ExpertsSizes& sizes, const int32_t* first, const Bf16* x,
                    const Bf16* gate_up, const Bf16* down, Bf16* gate_up_out, Bf16* hidden,
                    Bf16* y) {
  if (Empty(sizes)) return;
  Multiply<Form::kWeightHalves>("ExpertsForward, up", stream, sizes, first, x, gate_up, sizes.width,
                                2 * sizes.inner, StoreSwiglu{gate_up_out, hidden, sizes.inner});
  Multiply<Form::kWeights>("ExpertsForward, down", stream, sizes, first, hidden, down, sizes.inner,
                           sizes.width, StoreRows{y, sizes.width});
}

void ExpertsBackwardInput(Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                          const Bf16* gate_up, const Bf16* down, const Bf16* gate_up_out,
                          const Bf16* dy, Bf16* dgate_up_out, Bf16* dx) {
  if (Empty(sizes)) return;
  Multiply<Form::kTransposedWeights>("ExpertsBackwardInput, down", stream, sizes, first, dy, down,
                                     sizes.width, sizes.inner,
                                     StoreSwigluGradient{gate_up_out, dgate_up_out, sizes.inner});
  Multiply<Form::kTransposedWeights>("ExpertsBackwardInput, up", stream, sizes, first, dgate_up_out,
                                     gate_up, 2 * sizes.inner, sizes.width,
                                     StoreRows{dx, sizes.width});
}

void ExpertsBackwardWeight(Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                           const Bf16* x, const Bf16* hidden, const Bf16* dgate_up_out,
                           const Bf16* dy, float* dgate_up, float* ddown) {
  if (Empty(sizes)) return;
  AddProduct("ExpertsBackwardWeight, up", stream, sizes, first, x, dgate_up_out, sizes.width,
             2 * sizes.inner, dgate_up);
  AddProduct("ExpertsBackwardWeight, down", stream, sizes, first, hidden, dy, sizes.inner,
             sizes.width, ddown);
}

}  // namespace contraflow::gpu
