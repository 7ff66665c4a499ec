#include <algorithm>
#include <type_traits>

#include "kernels/gpu/experts.h"
#include "kernels/gpu/grouped_kernel.h"

namespace contraflow::gpu {
namespace {

/// Launches at most one block an SM, and no more than there can be tiles.
template <Form form, int kBlocks, typename Epilogue>
void LaunchGrouped(const char* name, Stream stream, const ExpertsSizes& sizes, GroupedSizes product,
                   const TensorMap& a, const TensorMap& b, const Epilogue& epilogue) {
  TileGrid& tiles = product.tiles;
  tiles.height *= kBlocks;
  tiles.rows = CeilDiv(tiles.rows, kBlocks);
  const int64_t rows_of_tiles = tiles.height == 0
                                    ? int64_t{sizes.experts} * tiles.rows
                                    : int64_t{sizes.most_rows} / tiles.height + sizes.experts;
  const int64_t clusters = std::min<int64_t>(stream.sms / kBlocks, rows_of_tiles * tiles.columns);
  LaunchClusters(name, stream, kBlocks, static_cast<unsigned>(clusters * kBlocks), kGroupedThreads,
                 sizeof(GroupedShared), GroupedKernel<form, kBlocks, Epilogue>, a, b, product,
                 epilogue);
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

/// Calls with the number of blocks of a cluster, as a constant: two, unless an SM would be left.
template <typename Call>
void WithBlocks(Stream stream, const Call& call) {
  if (stream.sms % 2 == 0) {
    call(std::integral_constant<int, 2>{});
  } else {
    call(std::integral_constant<int, 1>{});
  }
}

/// out[R x parts x columns].
template <int kParts>
BoxedRows<kParts> ResultOf(const ExpertsSizes& sizes, Bf16* out, int columns) {
  return {MapTensor(out, static_cast<uint64_t>(columns), kParts,
                    static_cast<uint64_t>(sizes.most_rows), 1, kWarpRows),
          out, columns};
}

/// rows [R x in] by weights [E x in x out], or their transposes [E x out x in].
template <Form form, typename Epilogue>
void Multiply(const char* name, Stream stream, const ExpertsSizes& sizes, const int32_t* first,
              const Bf16* rows, const Bf16* weights, int in, int out, const Epilogue& epilogue) {
  WithBlocks(stream, [&](auto blocks) {
    const TileGrid tiles = {first, sizes.experts, kTileRows, 0, CeilDiv(out, kTileColumns)};
    const TensorMap a = MapRows(rows, sizes, in, kTileRows);
    const TensorMap b = form == Form::kTransposedWeights
                            ? MapWeights(weights, sizes, out, in, kTileColumns / blocks)
                            : MapWeights(weights, sizes, in, out, kSlab);
    LaunchGrouped<form, blocks>(name, stream, sizes, {tiles, in, out, 0}, a, b, epilogue);
  });
}

/// gradient [E x in x out] += x^T dy.
void AddProduct(const char* name, Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                const Bf16* x, const Bf16* dy, int in, int out, float* gradient) {
  const TensorMap map = MapFloats(gradient, static_cast<uint64_t>(out), static_cast<uint64_t>(in),
                                  static_cast<uint64_t>(sizes.experts), kWarpRows);
  WithBlocks(stream, [&](auto blocks) {
    const TileGrid tiles = {first, sizes.experts, 0, CeilDiv(in, kTileRows),
                            CeilDiv(out, kTileColumns)};
    LaunchGrouped<Form::kRows, blocks>(name, stream, sizes, {tiles, 0, out, in},
                                       MapRows(x, sizes, in, kSlab), MapRows(dy, sizes, out, kSlab),
                                       AddInPlace{map});
  });
}

bool Empty(const ExpertsSizes& sizes) {
  return sizes.experts <= 0 || sizes.most_rows <= 0 || sizes.width <= 0 || sizes.inner <= 0;
}

}  // namespace

void ExpertsForward(Stream stream, const ExpertsSizes& sizes, const int32_t* first, const Bf16* x,
                    const Bf16* gate_up, const Bf16* down, Bf16* gate_up_out, Bf16* hidden,
                    Bf16* y) {
  if (Empty(sizes)) return;
  const int width = sizes.width, inner = sizes.inner;
  Multiply<Form::kWeightHalves>(
      "ExpertsForward, up", stream, sizes, first, x, gate_up, width, 2 * inner,
      StoreSwiglu{ResultOf<2>(sizes, gate_up_out, inner), ResultOf<1>(sizes, hidden, inner)});
  Multiply<Form::kWeights>("ExpertsForward, down", stream, sizes, first, hidden, down, inner, width,
                           StoreRows{ResultOf<1>(sizes, y, width)});
}

void ExpertsBackwardInput(Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                          const Bf16* gate_up, const Bf16* down, const Bf16* gate_up_out,
                          const Bf16* dy, Bf16* dgate_up_out, Bf16* dx) {
  if (Empty(sizes)) return;
  const int width = sizes.width, inner = sizes.inner;
  Multiply<Form::kTransposedWeights>(
      "ExpertsBackwardInput, down", stream, sizes, first, dy, down, width, inner,
      StoreSwigluGradient{gate_up_out, ResultOf<2>(sizes, dgate_up_out, inner), inner});
  Multiply<Form::kTransposedWeights>("ExpertsBackwardInput, up", stream, sizes, first, dgate_up_out,
                                     gate_up, 2 * inner, width,
                                     StoreRows{ResultOf<1>(sizes, dx, width)});
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
