#include <algorithm>
#include <string>

#include "kernels/gpu/routing.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {
namespace {

// The choice: one warp a row. A lane holds the values of the experts lane, lane + 32, ... in
// registers.

/// Orders probabilities, ties to the lower index, as integers: of values that are at least 0 the
/// bits are in their order. A value that is not a number has its place, too, so that a choice is
/// always an expert, and one rank at least 1.
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
  // If the first expert of a lane is past the end, the lane has a copy of the row's first.
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
    RouterForwardKernel(int rows, int experts, int top_k, float* probabilities, int32_t* expert,
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
    RouterBackwardKernel(const float* probabilities, const int32_t* expert, const float* dweight,
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
    // The chosen ones are written again.
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
  if (per_lane <= 1) return launch(&RouterForwardKernel<1>);
  if (per_lane <= 2) return launch(&RouterForwardKernel<2>);
  if (per_lane <= 4) return launch(&RouterForwardKernel<4>);
  if (per_lane <= 8) return launch(&RouterForwardKernel<8>);
  if (per_lane <= 16) return launch(&RouterForwardKernel<16>);
  launch(&RouterForwardKernel<kMaxExperts / kWarp>);
}

void RouterBackwardInput(Stream stream, const float* probabilities, const int32_t* expert,
                         const float* dweight, int rows, int experts, int top_k, Bf16* dlogits) {
  CheckSizes("RouterBackwardInput", experts, top_k);
  if (rows == 0) return;
  Launch("RouterBackwardInput", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         RouterBackwardKernel, probabilities, expert, dweight, rows, experts, top_k, dlogits);
}

namespace {

// The sort. The pairs are cut into chunks, one a block, and a chunk into parts, one a warp:
//
//   count    counts[expert][chunk] = pairs of the chunk that chose the expert
//   offsets  counts[expert][chunk] = pairs of the expert in chunks before; totals[expert]
//   scatter  a pair's row = those of lower experts + in chunks before + in parts before + before it
//            in its part, which its warp reads 32 at a time, in order.
constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kPart = 256;
constexpr int kChunk = kSortWarps * kPart;

struct Pairs {
  const int32_t* expert;
  int count;
  int experts;
  int chunks;
};

/// The lanes whose pairs have the same expert as this one's; lanes without a pair (expert -1) form
/// a set of their own.
__device__ unsigned SameExpert(int expert, int experts) {
  const unsigned present = __ballot_sync(~0u, expert >= 0);
  unsigned same = expert >= 0 ? present : ~present;
  for (int bit = 1; bit < experts; bit *= 2) {
    const bool set = (expert & bit) != 0;
    const unsigned with = __ballot_sync(~0u, set);
    same &= set ? with : ~with;
  }
  return same;
}

__device__ unsigned LanesBefore() { return (1u << Lane()) - 1u; }

/// count[expert] += the pairs of the running warp's part, which nobody else counts there.
__device__ void CountPart(const Pairs& pairs, int begin, int32_t* count) {
  for (int i = begin; i < begin + kPart && i < pairs.count; i += kWarp) {
    const int expert = i + Lane() < pairs.count ? pairs.expert[i + Lane()] : -1;
    const unsigned same = SameExpert(expert, pairs.experts);
    if (expert >= 0 && (same & LanesBefore()) == 0) count[expert] += __popc(same);
    // The next 32 may be counted by other lanes.
    __syncwarp();
  }
}

/// Like CountPart for each of the block's warps: count[warp][expert].
__device__ void CountParts(const Pairs& pairs, int32_t* count) {
  const int threads = static_cast<int>(blockDim.x), warp = ThreadIndex() / kWarp;
  for (int i = ThreadIndex(); i < kSortWarps * pairs.experts; i += threads) {
    count[i] = 0;
  }
  __syncthreads();
  const int begin = BlockIndex() * kChunk + warp * kPart;
  CountPart(pairs, begin, count + warp * pairs.experts);
  __syncthreads();
}

__global__ void __launch_bounds__(kSortThreads) CountKernel(Pairs pairs, int32_t* counts) {
  CF_DYNAMIC_SHARED(int32_t, of_warp);
  CountParts(pairs, of_warp);
  const int chunk = BlockIndex();
  for (int e = ThreadIndex(); e < pairs.experts; e += kSortThreads) {
    int32_t count = 0;
    for (int w = 0; w < kSortWarps; ++w) count += of_warp[w * pairs.experts + e];
    counts[static_cast<ptrdiff_t>(e) * pairs.chunks + chunk] = count;
  }
}

/// One warp an expert.
__global__ void __launch_bounds__(kSortThreads)
    OffsetsKernel(int experts, int chunks, int capacity, int32_t* counts, int32_t* totals,
                  int32_t* token_of, int32_t* dropped) {
  const int e = WarpInGrid();
  if (e >= experts) return;
  int32_t* const of_expert = Row(counts, e, chunks);
  int total = 0;
  for (int begin = 0; begin < chunks; begin += kWarp) {
    const int chunk = begin + Lane();
    const int count = chunk < chunks ? of_expert[chunk] : 0;
    const int up_to_here = ScanWarp(count);
    if (chunk < chunks) of_expert[chunk] = total + up_to_here - count;
    total += __shfl_sync(~0u, up_to_here, kWarp - 1);
  }
  if (Lane() == 0) totals[e] = total;
  if (capacity == 0) return;
  for (int i = total + Lane(); i < capacity; i += kWarp) {
    token_of[static_cast<ptrdiff_t>(e) * capacity + i] = -1;
  }
  if (Lane() == 0 && total > capacity && dropped != nullptr) atomicAdd(dropped, total - capacity);
}

/// begin[e] = where the rows of the expert begin, for the block once it has met; the first block
/// tells all.
__device__ void FindBegins(int experts, int capacity, const int32_t* totals, int32_t* begin,
                           int32_t* first) {
  constexpr int kPerThread = kMaxExperts / kSortThreads;
  const int thread = ThreadIndex();
  int32_t size[kPerThread] = {};
  int sum = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int e = thread * kPerThread + i;
    if (e < experts) size[i] = capacity > 0 ? capacity : totals[e];
    sum += size[i];
  }
  int before = ScanBlock(sum);
  for (int i = 0; i < kPerThread; ++i) {
    const int e = thread * kPerThread + i;
    if (e < experts) {
      begin[e] = before;
      if (blockIdx.x == 0) first[e] = before;
    }
    before += size[i];
  }
  if (blockIdx.x == 0 && thread == kSortThreads - 1) first[experts] = before;
}

__global__ void __launch_bounds__(kSortThreads)
    ScatterKernel(Pairs pairs, int top_k, int capacity, const int32_t* counts,
                  const int32_t* totals, int32_t* first, int32_t* token_of, int32_t* row_of) {
  CF_DYNAMIC_SHARED(int32_t, of_warp);
  int32_t* const begin = of_warp + kSortWarps * pairs.experts;
  FindBegins(pairs.experts, capacity, totals, begin, first);
  CountParts(pairs, of_warp);

  // The count of each warp becomes the number of pairs of the expert that come before its part.
  const int chunk = BlockIndex();
  for (int e = ThreadIndex(); e < pairs.experts; e += kSortThreads) {
    int32_t before = counts[static_cast<ptrdiff_t>(e) * pairs.chunks + chunk];
    for (int w = 0; w < kSortWarps; ++w) {
      int32_t& of_part = of_warp[w * pairs.experts + e];
      const int32_t count = of_part;
      of_part = before;
      before += count;
    }
  }
  __syncthreads();

  const int warp = ThreadIndex() / kWarp;
  int32_t* const taken = of_warp + warp * pairs.experts;
  const int part = chunk * kChunk + warp * kPart;
  for (int i = part; i < part + kPart && i < pairs.count; i += kWarp) {
    const int pair = i + Lane();
    const int expert = pair < pairs.count ? pairs.expert[pair] : -1;
    const unsigned same = SameExpert(expert, pairs.experts);
    const int before = expert >= 0 ? taken[expert] + __popc(same & LanesBefore()) : 0;
    __syncwarp();
    if (expert >= 0) {
      if ((same & LanesBefore()) == 0) taken[expert] += __popc(same);
      const bool fits = capacity == 0 || before < capacity;
      const int32_t row = fits ? begin[expert] + before : -1;
      row_of[pair] = row;
      if (fits) token_of[row] = pair / top_k;
    }
    __syncwarp();
  }
}

int Chunks(int pairs) { return std::max(CeilDiv(pairs, kChunk), 1); }

}  // namespace

size_t SortWork(int rows, int experts, int top_k) {
  return sizeof(int32_t) * static_cast<size_t>(experts) *
         (static_cast<size_t>(Chunks(rows * top_k)) + 1);
}

void SortByExpert(Stream stream, const int32_t* expert, int rows, int experts, int top_k,
                  int capacity, void* work, int32_t* first, int32_t* token_of, int32_t* row_of,
                  int32_t* dropped) {
  if (experts < 1 || experts > kMaxExperts || top_k < 1 || top_k > kMaxTopK) {
    throw GpuError("SortByExpert: " + std::to_string(top_k) + " choices of " +
                   std::to_string(experts) + " experts; at most " + std::to_string(kMaxTopK) +
                   " and " + std::to_string(kMaxExperts) + " are possible");
  }
  const Pairs pairs = {expert, rows * top_k, experts, Chunks(rows * top_k)};
  auto* const totals = static_cast<int32_t*>(work);
  int32_t* const counts = totals + experts;
  const auto chunks = Unsigned(pairs.chunks);
  const size_t for_counts = sizeof(int32_t) * kSortWarps * static_cast<size_t>(experts);
  const size_t for_begins = sizeof(int32_t) * static_cast<size_t>(experts);
  Launch("SortByExpert count", stream, chunks, kSortThreads, for_counts, CountKernel, pairs,
         counts);
  Launch("SortByExpert offsets", stream, Unsigned(CeilDiv(experts, kSortWarps)), kSortThreads, 0,
         OffsetsKernel, experts, pairs.chunks, capacity, counts, totals, token_of, dropped);
  Launch("SortByExpert scatter", stream, chunks, kSortThreads, for_counts + for_begins,
         ScatterKernel, pairs, top_k, capacity, counts, totals, first, token_of, row_of);
}

}  // namespace contraflow::gpu
