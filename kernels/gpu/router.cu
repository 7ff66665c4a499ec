#include <string>

#include "kernels/gpu/router.h"
#include "kernels/gpu/warp_rows.h"

namespace contraflow::gpu {
namespace {

// One warp a row. A lane holds the values of the experts lane, lane + 32, ... in registers.

/// Orders probabilities, ties to the lower index, as integers: of values that are at least 0 the
/// bits are in their order. What is not a number has its place, too, so that a choice is always an
/// expert, and one rank at least 1.
__device__ uint64_t Rank(float probability, int expert) {
  const uint64_t bits = std::bit_cast<uint32_t>(probability);
  return bits << 32 | (~0u - static_cast<uint32_t>(expert));
}
__device__ int ExpertOf(uint64_t rank) {
  return static_cast<int>(~0u - static_cast<uint32_t>(rank & ~0u));
}
__device__ float ProbabilityOf(uint64_t rank) {
  return std::bit_cast<float>(static_cast<uint32_t>(rank >> 32));
}

__device__ uint64_t BestOfWarp(uint64_t x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// The softmax of a row; beyond its end nothing changes.
template <int kPerLane>
__device__ void Softmax(float (&x)[kPerLane], int experts) {
  float largest = x[0];
  // The first expert of a lane may be beyond the end already, and is a copy of the row's first.
  CF_UNROLL
  for (int i = 1; i < kPerLane; ++i) {
    if (Lane() + i * kWarp < experts) largest = fmaxf(largest, x[i]);
  }
  largest = WarpMax(largest);
  float sum = 0;
  CF_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    if (Lane() + i * kWarp >= experts) continue;
    x[i] = expf(x[i] - largest);
    sum += x[i];
  }
  const float scale = 1.0f / WarpSum(sum);
  CF_UNROLL
  for (int i = 0; i < kPerLane; ++i) x[i] *= scale;
}

template <int kPerLane>
__global__ void __launch_bounds__(kRowThreads)
    ForwardKernel(int rows, int experts, int top_k, float* probabilities, int32_t* expert,
                  float* weight) {
  for (int r = WarpInGrid(); r < rows; r += WarpsOfGrid()) {
    float* const p = Row(probabilities, r, experts);
    float x[kPerLane] = {};
    CF_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int e = Lane() + i * kWarp;
      x[i] = p[e < experts ? e : 0];
    }
    Softmax(x, experts);
    CF_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (Lane() + i * kWarp < experts) p[Lane() + i * kWarp] = x[i];
    }
    unsigned taken = 0;
    uint64_t mine = 0;
    for (int k = 0; k < top_k; ++k) {
      uint64_t best = 0;
      CF_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int e = Lane() + i * kWarp;
        if (e < experts && (taken >> i & 1u) == 0) best = max(best, Rank(x[i], e));
      }
      best = BestOfWarp(best);
      const int chosen = ExpertOf(best);
      if (chosen % kWarp == Lane()) taken |= 1u << (chosen / kWarp);
      if (k == Lane()) mine = best;
    }
    if (Lane() < top_k) {
      expert[static_cast<ptrdiff_t>(r) * top_k + Lane()] = ExpertOf(mine);
      weight[static_cast<ptrdiff_t>(r) * top_k + Lane()] = ProbabilityOf(mine);
    }
  }
}

__global__ void __launch_bounds__(kRowThreads)
    BackwardKernel(const float* probabilities, const int32_t* expert, const float* dweight,
                   int rows, int experts, int top_k, Bf16* dlogits) {
  for (int r = WarpInGrid(); r < rows; r += WarpsOfGrid()) {
    const float* const p = Row(probabilities, r, experts);
    Bf16* const d = Row(dlogits, r, experts);
    const bool chose = Lane() < top_k;
    const ptrdiff_t pair = static_cast<ptrdiff_t>(r) * top_k + (chose ? Lane() : 0);
    const int chosen = expert[pair];
    const float dw = chose ? dweight[pair] : 0.0f;
    const float p_chosen = p[chosen];
    const float mean = WarpSum(p_chosen * dw);
    for (int e = Lane(); e < experts; e += kWarp) d[e] = ToBf16(p[e] * (0.0f - mean));
    // Those that were chosen are written again.
    __syncwarp();
    if (chose) d[chosen] = ToBf16(p_chosen * (dw - mean));
  }
}

void CheckSizes(const char* name, int experts, int top_k) {
  if (experts >= 1 && experts <= kMaxExperts && top_k >= 1 && top_k <= kMaxTopK &&
      top_k <= experts) {
    return;
  }
  throw GpuError(std::string(name) + ": a choice of " + std::to_string(top_k) + " out of " +
                 std::to_string(experts) + " experts; at most " + std::to_string(kMaxTopK) +
                 " of at most " + std::to_string(kMaxExperts) + " are possible");
}

}  // namespace

void RouterForward(Stream stream, int rows, int experts, int top_k, float* probabilities,
                   int32_t* expert, float* weight) {
  const char* const name = "RouterForward";
  CheckSizes(name, experts, top_k);
  if (rows == 0) return;
  const auto launch = [&](auto kernel) {
    Launch(name, stream, BlocksForWarps(stream, rows), kRowThreads, 0, kernel, rows, experts, top_k,
           probabilities, expert, weight);
  };
  const int per_lane = CeilDiv(experts, kWarp);
  if (per_lane <= 1) return launch(&ForwardKernel<1>);
  if (per_lane <= 2) return launch(&ForwardKernel<2>);
  if (per_lane <= 4) return launch(&ForwardKernel<4>);
  if (per_lane <= 8) return launch(&ForwardKernel<8>);
  if (per_lane <= 16) return launch(&ForwardKernel<16>);
  launch(&ForwardKernel<kMaxExperts / kWarp>);
}

void RouterBackwardInput(Stream stream, const float* probabilities, const int32_t* expert,
                         const float* dweight, int rows, int experts, int top_k, Bf16* dlogits) {
  CheckSizes("RouterBackwardInput", experts, top_k);
  if (rows == 0) return;
  Launch("RouterBackwardInput", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         BackwardKernel, probabilities, expert, dweight, rows, experts, top_k, dlogits);
}

}  // namespace contraflow::gpu
