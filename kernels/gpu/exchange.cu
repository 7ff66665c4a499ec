#include <algorithm>
#include <string>

#include "kernels/gpu/exchange.h"
#include "kernels/gpu/exchange_counts.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {
namespace {

constexpr int kCopyThreads = 512;
/// Threads of copies and sums of few CTAs, which have to keep as much under way as they can.
constexpr int kLinkThreads = 1024;

/// Blocks for the work, at least 1 and at most `ctas`.
unsigned BlocksFor(size_t threads, int block_threads, int ctas) {
  const auto each = static_cast<size_t>(block_threads), most = static_cast<size_t>(max(ctas, 1));
  return static_cast<unsigned>(std::clamp<size_t>((threads + each - 1) / each, 1, most));
}
unsigned BlocksForCopy(size_t threads, int ctas) { return BlocksFor(threads, kCopyThreads, ctas); }

/// A block copies one stretch after the other; of each a thread has several vectors under way.
__global__ void __launch_bounds__(kLinkThreads)
    CopyKernel(const unsigned char* from, unsigned char* to, size_t bytes) {
  constexpr int kUnderWay = 8;
  constexpr size_t kVector = sizeof(uint4), kStep = kVector * kLinkThreads;
  const size_t vectors_end = bytes / kVector * kVector;
  const size_t stretch = kStep * kUnderWay;
  for (size_t begin = blockIdx.x * stretch; begin < vectors_end; begin += gridDim.x * stretch) {
    const size_t first = begin + threadIdx.x * kVector;
    uint4 held[kUnderWay] = {};
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const size_t at = first + static_cast<size_t>(i) * kStep;
      if (at < vectors_end) held[i] = Load16(from + at);
    }
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const size_t at = first + static_cast<size_t>(i) * kStep;
      if (at < vectors_end) Store16(to + at, held[i]);
    }
  }
  const size_t left = vectors_end + threadIdx.x;
  if (blockIdx.x == 0 && left < bytes) to[left] = from[left];
}

/// N values a thread at a time, some of those under way.
template <int N>
__global__ void __launch_bounds__(kLinkThreads)
    SumKernel(const __grid_constant__ SumParts parts, size_t n) {
  constexpr int kUnderWay = 4;
  constexpr size_t kStep = size_t{kLinkThreads} * N, kStretch = kStep * kUnderWay;
  for (size_t begin = blockIdx.x * kStretch; begin < n; begin += gridDim.x * kStretch) {
    const size_t first = begin + threadIdx.x * N;
    Floats<N> sum[kUnderWay] = {}, more[kUnderWay] = {};
    for (int p = 0; p < parts.count; ++p) {
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        const size_t at = first + static_cast<size_t>(i) * kStep;
        if (at < n) more[i] = LoadFloats<N>(parts.part[p] + at);
      }
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        CF_UNROLL
        for (int j = 0; j < N; ++j)
          sum[i].at[j] = p == 0 ? more[i].at[j] : sum[i].at[j] + more[i].at[j];
      }
    }
    for (int p = 0; p < parts.count; ++p) {
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        const size_t at = first + static_cast<size_t>(i) * kStep;
        if (at < n) StoreFloats<N>(parts.part[p] + at, sum[i]);
      }
    }
  }
}

__global__ void __launch_bounds__(kCountThreads)
    CountKernel(const __grid_constant__ ExchangePeers peers, int self, int capacity, int most_rows,
                int32_t* first, int32_t* received, int32_t* overflow) {
  const int experts = peers.local_experts;
  const auto count = [&](int member, int local) {
    if (capacity > 0) return capacity;
    const int32_t* const sent = peers.peer[member].sent + self * experts + local;
    return sent[1] - sent[0];
  };
  WriteCounts(count, peers.members, experts, most_rows, first, received, overflow);
}

/// Knowledge of the lane `member` of a warp about the rows of one expert.
struct MemberPart {
  int begin;  ///< those of members before
  int count;
};
__device__ MemberPart PartOfLane(const int32_t* received, int members, int experts, int local) {
  const int count = Lane() < members ? received[Lane() * experts + local] : 0;
  return {ScanWarp(count) - count, count};
}

template <int N>
__global__ void __launch_bounds__(kCopyThreads)
    ToExpertsKernel(const __grid_constant__ ExchangePeers peers, int self, int width, int most_rows,
                    const int32_t* first, const int32_t* received) {
  const int experts = peers.local_experts;
  const int rows = min(first[experts], most_rows);
  for (int row = WarpInGrid(); row < rows; row += WarpsOfGrid()) {
    const int local = CountUpTo(first, experts, row) - 1;
    const int in_expert = row - first[local];
    const MemberPart part = PartOfLane(received, peers.members, experts, local);
    // The first whose rows do not end before this one.
    const bool here = in_expert < part.begin + part.count;
    const int member = __ffs(static_cast<int>(__ballot_sync(~0u, here))) - 1;
    const int in_part = in_expert - __shfl_sync(~0u, part.begin, member);
    const ExchangePeer& from = peers.peer[member];
    const int source = from.sent[self * experts + local] + in_part;
    CopyRow<N>(Row(from.tokens, source, width), Row(peers.peer[self].experts, row, width), width);
  }
}

template <int N>
__global__ void __launch_bounds__(kCopyThreads)
    ToTokensKernel(const __grid_constant__ ExchangePeers peers, int self, int width,
                   int sent_rows) {
  const int32_t* const sent = peers.peer[self].sent;
  const int experts = peers.local_experts, all = experts * peers.members;
  const int rows = min(sent[all], sent_rows);
  for (int row = WarpInGrid(); row < rows; row += WarpsOfGrid()) {
    const int expert = CountUpTo(sent, all, row) - 1;
    const ExchangePeer& from = peers.peer[expert / experts];
    const int local = expert % experts;
    const MemberPart part = PartOfLane(from.received, peers.members, experts, local);
    const int in_part = row - sent[expert];
    const int begin = from.first[local] + __shfl_sync(~0u, part.begin, self);
    Bf16* const to = Row(peers.peer[self].tokens, row, width);
    if (in_part < __shfl_sync(~0u, part.count, self)) {
      CopyRow<N>(Row(from.experts, begin + in_part, width), to, width);
    } else {
      ZeroRow<N>(to, width);
    }
  }
}

/// Whether rows can be moved in vectors.
bool Wide(const ExchangePeers& peers, int width) {
  bool aligned = width % kWide == 0;
  for (int m = 0; m < peers.members; ++m) {
    aligned = aligned && Aligned(peers.peer[m].tokens, peers.peer[m].experts);
  }
  return aligned;
}

void CheckPeers(const char* name, const ExchangePeers& peers, int self) {
  if (peers.members >= 1 && peers.members <= kMaxPeers && self >= 0 && self < peers.members &&
      peers.local_experts >= 1 && peers.local_experts <= kMaxExperts / peers.members) {
    return;
  }
  throw GpuError(std::string(name) + ": member " + std::to_string(self) + " of " +
                 std::to_string(peers.members) + ", " + std::to_string(peers.local_experts) +
                 " experts each; at most " + std::to_string(kMaxPeers) + " members and " +
                 std::to_string(kMaxExperts) + " experts in all are possible");
}

void CheckCtas(const char* name, int ctas) {
  if (ctas < 1)
    throw GpuError(std::string(name) + ": " + std::to_string(ctas) + " CTAs; at least 1");
}

}  // namespace

void LinkCopy(Stream stream, const void* from, void* to, size_t bytes, int ctas) {
  CheckCtas("LinkCopy", ctas);
  if (bytes == 0) return;
  Launch("LinkCopy", stream, BlocksFor(bytes / sizeof(uint4), kLinkThreads, ctas), kLinkThreads, 0,
         CopyKernel, static_cast<const unsigned char*>(from), static_cast<unsigned char*>(to),
         bytes);
}

void OrderedSum(Stream stream, const SumParts& parts, size_t n, int ctas) {
  CheckCtas("OrderedSum", ctas);
  if (parts.count < 0 || parts.count > kMaxPeers) {
    throw GpuError("OrderedSum: " + std::to_string(parts.count) + " parts; at most " +
                   std::to_string(kMaxPeers) + " are possible");
  }
  if (n == 0 || parts.count <= 1) return;
  bool wide = n % 4 == 0;
  for (int p = 0; p < parts.count; ++p) wide = wide && Aligned(parts.part[p]);
  Launch("OrderedSum", stream, BlocksFor(wide ? n / 4 : n, kLinkThreads, ctas), kLinkThreads, 0,
         wide ? &SumKernel<4> : &SumKernel<1>, parts, n);
}

void CountRows(Stream stream, const ExchangePeers& peers, int self, int capacity, int most_rows,
               int32_t* first, int32_t* received, int32_t* overflow) {
  CheckPeers("CountRows", peers, self);
  Launch("CountRows", stream, 1, kCountThreads, 0, CountKernel, peers, self, capacity, most_rows,
         first, received, overflow);
}

void PullToExperts(Stream stream, const ExchangePeers& peers, int self, int width, int capacity,
                   int most_rows, int32_t* first, int32_t* received, int32_t* overflow, int ctas) {
  const char* const name = "PullToExperts";
  CheckPeers(name, peers, self);
  CheckCtas(name, ctas);
  const ExchangePeer& mine = peers.peer[self];
  if (first != nullptr) {
    CountRows(stream, peers, self, capacity, most_rows, first, received, overflow);
  }
  if (most_rows == 0) return;
  Launch(name, stream, BlocksForCopy(size_t{kWarp} * static_cast<size_t>(most_rows), ctas),
         kCopyThreads, 0, Wide(peers, width) ? &ToExpertsKernel<kWide> : &ToExpertsKernel<1>, peers,
         self, width, most_rows, first != nullptr ? first : mine.first,
         first != nullptr ? received : mine.received);
}

void PullToTokens(Stream stream, const ExchangePeers& peers, int self, int width, int sent_rows,
                  int ctas) {
  CheckPeers("PullToTokens", peers, self);
  CheckCtas("PullToTokens", ctas);
  if (sent_rows == 0) return;
  Launch("PullToTokens", stream,
         BlocksForCopy(size_t{kWarp} * static_cast<size_t>(sent_rows), ctas), kCopyThreads, 0,
         Wide(peers, width) ? &ToTokensKernel<kWide> : &ToTokensKernel<1>, peers, self, width,
         sent_rows);
}

namespace {

constexpr int kSliceThreads = 256;

__device__ float Add(float a, float b) { return a + b; }
__device__ float4 Add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// T is float, or float4: n and stride are in T.
template <typename T>
__global__ void __launch_bounds__(kSliceThreads)
    AddSlicesKernel(T* own, const T* __restrict__ others, size_t stride, int parts, int self,
                    size_t n) {
  const size_t step = static_cast<size_t>(gridDim.x) * kSliceThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kSliceThreads + threadIdx.x; i < n; i += step) {
    const T mine = own[i];
    T sum = self == 0 ? mine : others[i];
    for (int part = 1; part < parts; ++part) {
      const auto other = static_cast<size_t>(part < self ? part : part - 1);
      sum = Add(sum, part == self ? mine : others[other * stride + i]);
    }
    own[i] = sum;
  }
}

template <typename T>
void AddSlicesOf(Stream stream, const Slices& slices, size_t n, int ctas) {
  constexpr size_t kWidth = sizeof(T) / 4;  // floats in T
  const size_t count = n / kWidth;
  Launch("AddSlices", stream, BlocksFor(count, kSliceThreads, ctas), kSliceThreads, 0,
         AddSlicesKernel<T>, reinterpret_cast<T*>(slices.own),
         reinterpret_cast<const T*>(slices.others), slices.stride / kWidth, slices.parts,
         slices.self, count);
}

}  // namespace

void AddSlices(Stream stream, const Slices& slices, size_t n, int ctas) {
  if (slices.parts < 2 || n == 0) return;
  const bool wide = Aligned(slices.own, slices.others) && slices.stride % 4 == 0 && n % 4 == 0;
  wide ? AddSlicesOf<float4>(stream, slices, n, ctas) : AddSlicesOf<float>(stream, slices, n, ctas);
}

namespace {

constexpr int kSetCountThreads = 128;
constexpr size_t kWord = sizeof(uint4);

/// Strides and lengths are in words of 16 bytes.
__global__ void __launch_bounds__(kCopyThreads)
    CopyPartsKernel(const uint4* __restrict__ from, size_t from_stride, uint4* __restrict__ to,
                    size_t to_stride, size_t words, size_t all) {
  const size_t step = static_cast<size_t>(gridDim.x) * kCopyThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kCopyThreads + threadIdx.x; i < all;
       i += step) {
    const size_t part = i / words, word = i % words;
    to[part * to_stride + word] = from[part * from_stride + word];
  }
}

__global__ void __launch_bounds__(kSetCountThreads)
    SetCountsKernel(int32_t* first, int32_t* received, int members, int local_experts,
                    int capacity) {
  const int i = static_cast<int>(blockIdx.x * kSetCountThreads + threadIdx.x);
  if (i <= local_experts) first[i] = i * members * capacity;
  if (i < members * local_experts) received[i] = capacity;
}

}  // namespace

void CopyParts(Stream stream, const void* from, size_t from_stride, void* to, size_t to_stride,
               size_t bytes, int parts, int ctas) {
  if (bytes % kWord != 0 || from_stride % kWord != 0 || to_stride % kWord != 0) {
    throw GpuError("CopyParts: parts and strides must be multiples of 16 bytes");
  }
  const size_t words = bytes / kWord, all = words * static_cast<size_t>(parts);
  if (all == 0) return;
  Launch("CopyParts", stream, BlocksForCopy(all, ctas), kCopyThreads, 0, CopyPartsKernel,
         static_cast<const uint4*>(from), from_stride / kWord, static_cast<uint4*>(to),
         to_stride / kWord, words, all);
}

void SetCounts(Stream stream, int32_t* first, int32_t* received, int members, int local_experts,
               int capacity) {
  const int counts = max(local_experts + 1, members * local_experts);
  Launch("SetCounts", stream, Unsigned(CeilDiv(counts, kSetCountThreads)), kSetCountThreads, 0,
         SetCountsKernel, first, received, members, local_experts, capacity);
}

}  // namespace contraflow::gpu
