// Attention, forward. A block owns kBlockRows queries of a head and meets the keys and values
// before them a tile at a time, the next tile being copied meanwhile:
//
//   scores = q k^T                 16 or 32 queries to a warp, 64 keys; never leave the registers
//   peak, sum                      the online softmax: both are corrected when a peak is exceeded
//   out += exp(scores - peak) v

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/mma_tiles.h"

namespace contraflow::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kRepeats = kBlockRows / kWarps / 16;

/// Keys that are met at a time: as many as leave all sums in registers.
template <int kWidth>
constexpr int kKeys = kWidth > 96 ? 32 : 64;

template <int kWidth>
constexpr size_t kShared = sizeof(Bf16) * kPitch<kWidth>*(kBlockRows + 4 * kKeys<kWidth>);

/// A row of scores becomes weights 2^(score * scale - peak); `out` and `sum` become what they are
/// in terms of the new peak. The four lanes of a row agree on the peak and have a part of the sum
/// each.
template <int kColumns, int kFragments>
__device__ void Soften(float scale, int half, const float (&scores)[kColumns][4],
                       uint32_t (&weights)[kColumns][2], float (&out)[kFragments][4], float* peak,
                       float* sum) {
  float highest = -INFINITY;
  CF_UNROLL
  for (int n = 0; n < kColumns; ++n) {
    highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  }
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
  // The first tile has a key that every query may see, so that the peak is finite from then on.
  const float new_peak = fmaxf(*peak, highest * scale);
  // Rarely so once the first tiles are done.
  if (__any_sync(~0u, new_peak > *peak)) {
    const float correction = Exp2(*peak - new_peak);
    CF_UNROLL
    for (int n = 0; n < kFragments; ++n) {
      out[n][2 * half] *= correction;
      out[n][2 * half + 1] *= correction;
    }
    *sum *= correction;
    *peak = new_peak;
  }
  CF_UNROLL
  for (int n = 0; n < kColumns; ++n) {
    const float low = Exp2(fmaf(scores[n][2 * half], scale, -new_peak));
    const float high = Exp2(fmaf(scores[n][2 * half + 1], scale, -new_peak));
    weights[n][half] = PackBf16(low, high);
    *sum += low + high;
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    ForwardKernel(AttentionShape shape, float scale, const Bf16* qkv, Bf16* out, float* lse) {
  constexpr int kTileRows = kKeys<kWidth>, kColumns = kTileRows / 8;
  CF_DYNAMIC_SHARED(Bf16, queries);
  Bf16* const keys = queries + kBlockRows * kPitch<kWidth>;  // two tiles
  Bf16* const values = keys + 2 * kTileRows * kPitch<kWidth>;
  const int warp = ThreadIndex() / kWarp;
  const int lane = Lane(), g = lane / 4, t = lane % 4;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int width = shape.head_width, out_pitch = shape.heads * width, pitch = 3 * out_pitch;
  // Blocks with the most keys begin first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int own = first + warp * kRepeats * 16;  // the warp's first query
  const int end = min(shape.sequence, first + kBlockRows);

  const auto load = [&](int tile) {
    const int row = tile * kTileRows, left = shape.sequence - row;
    const int offset = tile % 2 * kTileRows * kPitch<kWidth>;
    const Bf16* const key = qkv + static_cast<ptrdiff_t>(row) * pitch + out_pitch;
    LoadTile<kTileRows, kWidth>(key, pitch, left, width, keys + offset);
    LoadTile<kTileRows, kWidth>(key + out_pitch, pitch, left, width, values + offset);
    AsyncCommit();
  };
  qkv += FirstQuery(shape, batch, head);
  LoadTile<kBlockRows, kWidth>(qkv + static_cast<ptrdiff_t>(first) * pitch, pitch,
                               shape.sequence - first, width, queries);
  load(0);

  float sums[kRepeats][kWidth / 8][4] = {};
  float peak[kRepeats][2], sum[kRepeats][2] = {};
  CF_UNROLL
  for (auto& rows : peak) rows[0] = rows[1] = -INFINITY;

  const int tiles = CeilDiv(end, kTileRows);
  for (int tile = 0; tile < tiles; ++tile) {
    AsyncWait<0>();
    __syncthreads();
    if (tile + 1 < tiles) load(tile + 1);
    const int key = tile * kTileRows;
    if (own >= end || key >= own + kRepeats * 16) continue;
    const int offset = tile % 2 * kTileRows * kPitch<kWidth>;
    float scores[kRepeats][kColumns][4] = {};
    AddRowProducts<kWidth>(queries + warp * kRepeats * 16 * kPitch<kWidth>, keys + offset, scores);
    if (key + kTileRows > own + 1) {
      CF_UNROLL
      for (int m = 0; m < kRepeats; ++m) {
        CF_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          CF_UNROLL
          for (int j = 0; j < 4; ++j) {
            const int query = own + m * 16 + j / 2 * 8 + g;
            if (key + n * 8 + 2 * t + j % 2 > query) scores[m][n][j] = -INFINITY;
          }
        }
      }
    }
    uint32_t weights[kRepeats][kColumns][2];
    CF_UNROLL
    for (int m = 0; m < kRepeats; ++m) {
      CF_UNROLL
      for (int half = 0; half < 2; ++half) {
        Soften(scale, half, scores[m], weights[m], sums[m], &peak[m][half], &sum[m][half]);
      }
    }
    AddWeightedRows<kWidth>(weights, values + offset, sums);
  }
  if (own >= end) return;

  float inverse[kRepeats][2];
  CF_UNROLL
  for (int m = 0; m < kRepeats; ++m) {
    CF_UNROLL
    for (int half = 0; half < 2; ++half) {
      float whole = sum[m][half];
      whole += __shfl_xor_sync(~0u, whole, 1);
      whole += __shfl_xor_sync(~0u, whole, 2);
      inverse[m][half] = 1.0f / whole;
      const int query = own + m * 16 + half * 8 + g;
      if (t == 0 && query < end) {
        lse[FirstSum(shape, batch, head) + query] = peak[m][half] * kLogOf2 + logf(whole);
      }
    }
  }
  StoreRows<kWidth>(sums, inverse, queries + warp * kRepeats * 16 * kPitch<kWidth>,
                    out + FirstOut(shape, batch, head) + static_cast<ptrdiff_t>(own) * out_pitch,
                    out_pitch, end - own, width);
}

}  // namespace

void MmaAttentionForward(Stream stream, const AttentionShape& shape, const Bf16* qkv, Bf16* out,
                         float* lse) {
  const float scale = kLog2E / std::sqrt(static_cast<float>(shape.head_width));
  const dim3 grid(Unsigned(CeilDiv(shape.sequence, kBlockRows)), Unsigned(shape.heads),
                  Unsigned(shape.batch));
  ForWidth(shape.head_width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    Launch("AttentionForward", stream, grid, kWarps * kWarp, kShared<kWidth>, ForwardKernel<kWidth>,
           shape, scale, qkv, out, lse);
  });
}

}  // namespace contraflow::gpu
