// Attention, backward. With weights = exp(scores * scale - lse) and
// dscores = weights * (dout v^T - dot):
//
//   dv = weights^T dout     dk = scale dscores^T q     a block to kBlockRows keys, meets queries
//   dq = scale dscores k                               a block to kBlockRows queries, meets keys
//
// Both make the scores, or their transpose, again; in return nothing is summed by more than one
// warp, and every sum is in the order of the rows.

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/mma_tiles.h"

namespace contraflow::gpu {
namespace {

constexpr int kWarps = kBlockRows / 16;
constexpr int kTileRows = 64;
constexpr int kColumns = kTileRows / 8;  // fragments

/// Two operands that stay, and two that come tile by tile, twice; two numbers a row with the
/// latter.
template <int kWidth>
constexpr size_t kShared = sizeof(Bf16) * kPitch<kWidth>*(2 * kBlockRows + 4 * kTileRows) +
                           sizeof(float) * 4 * kTileRows;

constexpr int kDotLanes = 16;  // each has 8 of the at most 128 elements of a head
constexpr int kDotThreads = 256;

/// dot[batch x heads x sequence]: 16 lanes to a head of a token, heads of a token side by side.
__global__ void __launch_bounds__(kDotThreads)
    DotKernel(AttentionShape shape, const Bf16* out, const Bf16* dout, float* dot) {
  const int number = BlockIndex() * (kDotThreads / kDotLanes) + ThreadIndex() / kDotLanes;
  const int row = number / shape.heads, head = number % shape.heads;
  const int column = ThreadIndex() % kDotLanes * kPiece;
  const bool valid = row < shape.batch * shape.sequence;
  float sum = 0;
  if (valid && column < shape.head_width) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(number) * shape.head_width + column;
    const uint4 x = *reinterpret_cast<const uint4*>(out + at);
    const uint4 y = *reinterpret_cast<const uint4*>(dout + at);
    const uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
    CF_UNROLL
    for (int i = 0; i < 4; ++i) {
      sum += LowHalf(left[i]) * LowHalf(right[i]);
      sum += HighHalf(left[i]) * HighHalf(right[i]);
    }
  }
  for (int step = kDotLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (valid && column == 0) {
    const int batch = row / shape.sequence;
    dot[FirstSum(shape, batch, head) + row % shape.sequence] = sum;
  }
}

/// Rows of two operands, and of two numbers, copied to one of two places in shared memory.
template <int kWidth>
struct Tiles {
  Bf16 *first, *second;  // two tiles each
  float* numbers;        // two tiles of lse, two of dot

  __device__ Bf16* First(int tile) const { return first + tile % 2 * kTileRows * kPitch<kWidth>; }
  __device__ Bf16* Second(int tile) const { return second + tile % 2 * kTileRows * kPitch<kWidth>; }
  __device__ float* Lse(int tile) const { return numbers + tile % 2 * kTileRows; }
  __device__ float* Dot(int tile) const { return numbers + (2 + tile % 2) * kTileRows; }
};

template <int kWidth>
__device__ Tiles<kWidth> TilesBehind(Bf16* shared) {
  Bf16* const second = shared + 2 * kTileRows * kPitch<kWidth>;
  return {shared, second, reinterpret_cast<float*>(second + 2 * kTileRows * kPitch<kWidth>)};
}

/// Scores and d(weights) of a warp's 16 rows and a tile become weights and dscores, packed. Whether
/// an element counts and its lse and dot are `where`'s to say.
template <typename Where>
__device__ void Differentiate(float scale, const float (&scores)[1][kColumns][4],
                              const float (&dweights)[1][kColumns][4], Where where,
                              uint32_t (&weights)[1][kColumns][2],
                              uint32_t (&dscores)[1][kColumns][2]) {
  CF_UNROLL
  for (int n = 0; n < kColumns; ++n) {
    CF_UNROLL
    for (int half = 0; half < 2; ++half) {
      float weight[2], dscore[2];
      CF_UNROLL
      for (int j = 0; j < 2; ++j) {
        float lse, dot;
        const bool counts = where(n, half, j, &lse, &dot);
        const int at = 2 * half + j;
        weight[j] = counts ? Exp2(fmaf(scores[0][n][at], scale, -lse * kLog2E)) : 0;
        dscore[j] = weight[j] * (dweights[0][n][at] - dot);
      }
      weights[0][n][half] = PackBf16(weight[0], weight[1]);
      dscores[0][n][half] = PackBf16(dscore[0], dscore[1]);
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    KeyKernel(AttentionShape shape, float scale, const Bf16* qkv, const float* lse,
              const Bf16* dout, const float* dot, Bf16* dqkv) {
  CF_DYNAMIC_SHARED(Bf16, keys);
  Bf16* const values = keys + kBlockRows * kPitch<kWidth>;
  const Tiles<kWidth> tiles = TilesBehind<kWidth>(values + kBlockRows * kPitch<kWidth>);
  const int thread = ThreadIndex();
  const int warp = thread / kWarp, lane = thread % kWarp, g = lane / 4, t = lane % 4;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int width = shape.head_width, out_pitch = shape.heads * width, pitch = 3 * out_pitch;
  const int first = BlockIndex() * kBlockRows;
  const int own = first + warp * 16;  // the warp's first key
  const int count = CeilDiv(shape.sequence, kTileRows);
  qkv += FirstQuery(shape, batch, head);
  dqkv += FirstQuery(shape, batch, head);
  dout += FirstOut(shape, batch, head);
  lse += FirstSum(shape, batch, head);
  dot += FirstSum(shape, batch, head);

  const auto load = [&](int tile) {
    const int row = tile * kTileRows, left = shape.sequence - row;
    LoadTile<kTileRows, kWidth>(qkv + static_cast<ptrdiff_t>(row) * pitch, pitch, left, width,
                                tiles.First(tile));
    LoadTile<kTileRows, kWidth>(dout + static_cast<ptrdiff_t>(row) * out_pitch, out_pitch, left,
                                width, tiles.Second(tile));
    if (thread < 2 * kTileRows) {
      const int i = thread % kTileRows;
      const float* const from = thread < kTileRows ? lse : dot;
      float* const to = thread < kTileRows ? tiles.Lse(tile) : tiles.Dot(tile);
      AsyncCopy<4>(to + i, i < left ? from + row + i : from, i < left);
    }
    AsyncCommit();
  };
  const Bf16* const key = qkv + static_cast<ptrdiff_t>(first) * pitch + out_pitch;
  LoadTile<kBlockRows, kWidth>(key, pitch, shape.sequence - first, width, keys);
  LoadTile<kBlockRows, kWidth>(key + out_pitch, pitch, shape.sequence - first, width, values);
  load(first / kTileRows);

  float dk[1][kWidth / 8][4] = {}, dv[1][kWidth / 8][4] = {};
  for (int tile = first / kTileRows; tile < count; ++tile) {
    AsyncWait<0>();
    __syncthreads();
    if (tile + 1 < count) load(tile + 1);
    const int query = tile * kTileRows;
    if (own >= shape.sequence || query + kTileRows <= own) continue;
    float scores[1][kColumns][4] = {}, dweights[1][kColumns][4] = {};
    AddRowProducts<kWidth>(keys + warp * 16 * kPitch<kWidth>, tiles.First(tile), scores);
    AddRowProducts<kWidth>(values + warp * 16 * kPitch<kWidth>, tiles.Second(tile), dweights);
    uint32_t weights[1][kColumns][2], dscores[1][kColumns][2];
    const float *const lse_at = tiles.Lse(tile), *const dot_at = tiles.Dot(tile);
    Differentiate(
        scale, scores, dweights,
        [&](int n, int half, int j, float* row_lse, float* row_dot) {
          const int column = n * 8 + 2 * t + j;
          *row_lse = lse_at[column];
          *row_dot = dot_at[column];
          return query + column >= own + half * 8 + g;
        },
        weights, dscores);
    AddWeightedRows<kWidth>(weights, tiles.Second(tile), dv);
    AddWeightedRows<kWidth>(dscores, tiles.First(tile), dk);
  }
  if (own >= shape.sequence) return;

  Bf16* const to = dqkv + static_cast<ptrdiff_t>(own) * pitch + out_pitch;
  const float by_scale[1][2] = {{scale * kLogOf2, scale * kLogOf2}}, by_one[1][2] = {{1, 1}};
  StoreRows<kWidth>(dk, by_scale, keys + warp * 16 * kPitch<kWidth>, to, pitch,
                    shape.sequence - own, width);
  StoreRows<kWidth>(dv, by_one, values + warp * 16 * kPitch<kWidth>, to + out_pitch, pitch,
                    shape.sequence - own, width);
}

template <int kWidth>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    QueryKernel(AttentionShape shape, float scale, const Bf16* qkv, const float* lse,
                const Bf16* dout, const float* dot, Bf16* dqkv) {
  CF_DYNAMIC_SHARED(Bf16, queries);
  Bf16* const douts = queries + kBlockRows * kPitch<kWidth>;
  const Tiles<kWidth> tiles = TilesBehind<kWidth>(douts + kBlockRows * kPitch<kWidth>);
  const int warp = ThreadIndex() / kWarp;
  const int lane = Lane(), g = lane / 4, t = lane % 4;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int width = shape.head_width, out_pitch = shape.heads * width, pitch = 3 * out_pitch;
  // Blocks with the most keys begin first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int own = first + warp * 16;  // the warp's first query
  const int end = min(shape.sequence, first + kBlockRows);
  qkv += FirstQuery(shape, batch, head);
  dqkv += FirstQuery(shape, batch, head);
  dout += FirstOut(shape, batch, head);

  const auto load = [&](int tile) {
    const int row = tile * kTileRows, left = shape.sequence - row;
    const Bf16* const key = qkv + static_cast<ptrdiff_t>(row) * pitch + out_pitch;
    LoadTile<kTileRows, kWidth>(key, pitch, left, width, tiles.First(tile));
    LoadTile<kTileRows, kWidth>(key + out_pitch, pitch, left, width, tiles.Second(tile));
    AsyncCommit();
  };
  LoadTile<kBlockRows, kWidth>(qkv + static_cast<ptrdiff_t>(first) * pitch, pitch,
                               shape.sequence - first, width, queries);
  LoadTile<kBlockRows, kWidth>(dout + static_cast<ptrdiff_t>(first) * out_pitch, out_pitch,
                               shape.sequence - first, width, douts);
  load(0);

  float own_lse[2], own_dot[2];
  CF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int query = min(own + half * 8 + g, shape.sequence - 1);
    own_lse[half] = lse[FirstSum(shape, batch, head) + query];
    own_dot[half] = dot[FirstSum(shape, batch, head) + query];
  }
  float dq[1][kWidth / 8][4] = {};
  const int count = CeilDiv(end, kTileRows);
  for (int tile = 0; tile < count; ++tile) {
    AsyncWait<0>();
    __syncthreads();
    if (tile + 1 < count) load(tile + 1);
    const int key = tile * kTileRows;
    if (own >= end || key >= own + 16) continue;
    float scores[1][kColumns][4] = {}, dweights[1][kColumns][4] = {};
    AddRowProducts<kWidth>(queries + warp * 16 * kPitch<kWidth>, tiles.First(tile), scores);
    AddRowProducts<kWidth>(douts + warp * 16 * kPitch<kWidth>, tiles.Second(tile), dweights);
    uint32_t weights[1][kColumns][2], dscores[1][kColumns][2];
    Differentiate(
        scale, scores, dweights,
        [&](int n, int half, int j, float* row_lse, float* row_dot) {
          *row_lse = own_lse[half];
          *row_dot = own_dot[half];
          return key + n * 8 + 2 * t + j <= own + half * 8 + g;
        },
        weights, dscores);
    AddWeightedRows<kWidth>(dscores, tiles.First(tile), dq);
  }
  if (own >= end) return;

  const float by_scale[1][2] = {{scale * kLogOf2, scale * kLogOf2}};
  StoreRows<kWidth>(dq, by_scale, queries + warp * 16 * kPitch<kWidth>,
                    dqkv + static_cast<ptrdiff_t>(own) * pitch, pitch, end - own, width);
}

}  // namespace

void MmaAttentionBackward(Stream stream, const AttentionShape& shape, const Bf16* qkv,
                          const Bf16* out, const float* lse, const Bf16* dout, float* dot,
                          Bf16* dqkv) {
  const int pairs = shape.batch * shape.sequence * shape.heads;
  Launch("AttentionDot", stream, Unsigned(CeilDiv(pairs, kDotThreads / kDotLanes)), kDotThreads, 0,
         DotKernel, shape, out, dout, dot);
  const float scale = kLog2E / std::sqrt(static_cast<float>(shape.head_width));
  const dim3 grid(Unsigned(CeilDiv(shape.sequence, kBlockRows)), Unsigned(shape.heads),
                  Unsigned(shape.batch));
  ForWidth(shape.head_width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    Launch("AttentionBackwardKeys", stream, grid, kWarps * kWarp, kShared<kWidth>,
           KeyKernel<kWidth>, shape, scale, qkv, lse, dout, dot, dqkv);
    Launch("AttentionBackwardQueries", stream, grid, kWarps * kWarp, kShared<kWidth>,
           QueryKernel<kWidth>, shape, scale, qkv, lse, dout, dot, dqkv);
  });
}

}  // namespace contraflow::gpu
