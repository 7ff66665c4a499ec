#include <algorithm>
#include <string>

#include "kernels/gpu/permutation.h"
#include "kernels/gpu/router.h"
#include "kernels/gpu/scan.h"
#include "kernels/gpu/warp_rows.h"

namespace contraflow::gpu {
namespace {

// The pairs are cut into chunks, one a block, and a chunk into parts, one a warp:
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

/// As CountPart for each of the block's warps: count[warp][expert].
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

  // What each warp has counted becomes how many pairs of the expert come before its part.
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

template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    GatherKernel(const Bf16* x, const int32_t* token_of, int sorted_rows, int width, Bf16* sorted) {
  for (int row = WarpInGrid(); row < sorted_rows; row += WarpsOfGrid()) {
    const int token = token_of[row];
    if (token < 0) {
      ZeroRow<N>(Row(sorted, row, width), width);
    } else {
      CopyRow<N>(Row(x, token, width), Row(sorted, row, width), width);
    }
  }
}

/// One warp a token, which it reads once.
template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    SpreadKernel(const Bf16* x, const int32_t* row_of, const int32_t* token_of, int rows,
                 int sorted_rows, int top_k, int width, Bf16* sorted) {
  constexpr int kUnderWay = 4, kStep = kWarp * N;
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const int my_row = Lane() < top_k ? row_of[static_cast<ptrdiff_t>(t) * top_k + Lane()] : -1;
    const Bf16* const from = Row(x, t, width);
    for (int begin = 0; begin < width; begin += kStep * kUnderWay) {
      const int first = begin + Lane() * N;
      Bf16s<N> held[kUnderWay] = {};
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        if (first + i * kStep < width) held[i] = Load<N>(from + first + i * kStep);
      }
      for (int k = 0; k < top_k; ++k) {
        const int row = __shfl_sync(~0u, my_row, k);
        if (row < 0) continue;
        Bf16* const to = Row(sorted, row, width);
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          if (first + i * kStep < width) Store<N>(to + first + i * kStep, held[i]);
        }
      }
    }
  }
  ZeroEmptyRows<N>(token_of, sorted_rows, width, sorted);
}

/// One warp a token. Lane k knows the row of choice k; some rows are read at a time.
template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    GatherBackwardKernel(const Bf16* dsorted, const int32_t* row_of, int rows, int top_k, int width,
                         Bf16* dx) {
  constexpr int kUnderWay = 4;
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const int my_row = Lane() < top_k ? row_of[static_cast<ptrdiff_t>(t) * top_k + Lane()] : -1;
    for (int begin = 0; begin < width; begin += kWarp * N) {
      const int at = begin + Lane() * N;
      Floats<N> sum = {};
      for (int k = 0; k < top_k; k += kUnderWay) {
        Bf16s<N> held[kUnderWay] = {};
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          const int row = __shfl_sync(~0u, my_row, k + i);
          if (row >= 0 && at < width) held[i] = Load<N>(Row(dsorted, row, width) + at);
        }
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          const Floats<N> from = Unpack<N>(held[i]);
          CF_UNROLL
          for (int j = 0; j < N; ++j) sum.at[j] += from.at[j];
        }
      }
      if (at < width) Store<N>(Row(dx, t, width) + at, Pack<N>(sum));
    }
  }
}

int Chunks(int pairs) { return std::max(CeilDiv(pairs, kChunk), 1); }

void CheckSizes(const char* name, int experts, int top_k) {
  if (experts >= 1 && experts <= kMaxExperts && top_k >= 1 && top_k <= kMaxTopK) return;
  throw GpuError(std::string(name) + ": " + std::to_string(top_k) + " choices of " +
                 std::to_string(experts) + " experts; at most " + std::to_string(kMaxTopK) +
                 " and " + std::to_string(kMaxExperts) + " are possible");
}

}  // namespace

size_t SortWork(int rows, int experts, int top_k) {
  return sizeof(int32_t) * static_cast<size_t>(experts) *
         (static_cast<size_t>(Chunks(rows * top_k)) + 1);
}

void SortByExpert(Stream stream, const int32_t* expert, int rows, int experts, int top_k,
                  int capacity, void* work, int32_t* first, int32_t* token_of, int32_t* row_of,
                  int32_t* dropped) {
  CheckSizes("SortByExpert", experts, top_k);
  const Pairs pairs = {expert, rows * top_k, experts, Chunks(rows * top_k)};
  auto* const totals = static_cast<int32_t*>(work);
  int32_t* const counts = totals + experts;
  const auto chunks = static_cast<unsigned>(pairs.chunks);
  const size_t for_counts = sizeof(int32_t) * kSortWarps * static_cast<size_t>(experts);
  const size_t for_begins = sizeof(int32_t) * static_cast<size_t>(experts);
  Launch("SortByExpert count", stream, chunks, kSortThreads, for_counts, CountKernel, pairs,
         counts);
  Launch("SortByExpert offsets", stream, static_cast<unsigned>(CeilDiv(experts, kSortWarps)),
         kSortThreads, 0, OffsetsKernel, experts, pairs.chunks, capacity, counts, totals, token_of,
         dropped);
  Launch("SortByExpert scatter", stream, chunks, kSortThreads, for_counts + for_begins,
         ScatterKernel, pairs, top_k, capacity, counts, totals, first, token_of, row_of);
}

void GatherTokens(Stream stream, const Bf16* x, const int32_t* token_of, int sorted_rows, int width,
                  Bf16* sorted) {
  if (sorted_rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(x, sorted);
  Launch("GatherTokens", stream, BlocksForWarps(stream, sorted_rows), kRowThreads, 0,
         wide ? &GatherKernel<kWide> : &GatherKernel<1>, x, token_of, sorted_rows, width, sorted);
}

void SpreadTokens(Stream stream, const Bf16* x, const int32_t* row_of, const int32_t* token_of,
                  int rows, int sorted_rows, int top_k, int width, Bf16* sorted) {
  CheckSizes("SpreadTokens", 1, top_k);
  if (sorted_rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(x, sorted);
  Launch("SpreadTokens", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         wide ? &SpreadKernel<kWide> : &SpreadKernel<1>, x, row_of, token_of, rows, sorted_rows,
         top_k, width, sorted);
}

void GatherTokensBackwardInput(Stream stream, const Bf16* dsorted, const int32_t* row_of, int rows,
                               int top_k, int width, Bf16* dx) {
  CheckSizes("GatherTokensBackwardInput", 1, top_k);
  if (rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(dsorted, dx);
  Launch("GatherTokensBackwardInput", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         wide ? &GatherBackwardKernel<kWide> : &GatherBackwardKernel<1>, dsorted, row_of, rows,
         top_k, width, dx);
}

}  // namespace contraflow::gpu
