#include "kernels/gpu/experts.h"
#include "kernels/gpu/grouped_gemm.h"

namespace contraflow::gpu {
namespace {

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
