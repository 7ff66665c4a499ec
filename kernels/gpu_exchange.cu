#include <string>

#include "kernels/gpu_exchange.h"
#include "kernels/gpu_router.h"
#include "kernels/scan.h"
#include "kernels/warp_rows.h"

namespace contraflow::gpu {
namespace {

constexpr int kCopyThreads = 512;
constexpr int kCountThreads = 256;

unsigned BlocksForCopy(size_t threads, int ctas) {
  const size_t blocks = (threads + kCopyThreads - 1) / kCopyThreads;
  return static_cast<unsigned>(std::clamp<size_t>(blocks, 1, static_cast<size_t>(ctas)));
}

/// A block copies one stretch after the other; of each a thread has several vectors under way.
__global__ void __launch_bounds__(kCopyThreads)
    CopyKernel(const uint4* from, uint4* to, size_t vectors, const unsigned char* rest_from,
               unsigned char* rest_to, int rest) {
  constexpr int kUnderWay = 8;
  constexpr size_t kStretch = size_t{kUnderWay} * kCopyThreads;
  for (size_t begin = blockIdx.x * kStretch; begin < vectors; begin += gridDim.x * kStretch) {
    uint4 held[kUnderWay] = {};
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const size_t at = begin + static_cast<size_t>(i) * kCopyThreads + threadIdx.x;
      if (at < vectors) held[i] = from[at];
    }
    CF_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const size_t at = begin + static_cast<size_t>(i) * kCopyThreads + threadIdx.x;
      if (at < vectors) to[at] = held[i];
    }
  }
  const int thread = ThreadIndex();
  if (blockIdx.x == 0 && thread < rest) rest_to[thread] = rest_from[thread];
}

__device__ float Add(float a, float b) { return a + b; }
__device__ float4 Add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// T is float or float4, `n` elements of it.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    SumKernel(const __grid_constant__ SumParts parts, size_t n) {
  const size_t threads = size_t{gridDim.x} * kCopyThreads;
  for (size_t i = size_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < n; i += threads) {
    T sum = reinterpret_cast<const T*>(parts.part[0])[i];
    for (int p = 1; p < parts.count; ++p) {
      sum = Add(sum, reinterpret_cast<const T*>(parts.part[p])[i]);
    }
    for (int p = 0; p < parts.count; ++p) reinterpret_cast<T*>(parts.part[p])[i] = sum;
  }
}

__host__ __device__ int OwnersOf(const ExchangePeers& peers) {
  return peers.owners > 0 ? peers.owners : peers.members;
}

/// One block. Cuts what it has counted at most_rows, so that whoever reads the counts stays inside.
__global__ void __launch_bounds__(kCountThreads)
    CountKernel(const __grid_constant__ ExchangePeers peers, int self, int capacity, int most_rows,
                int32_t* first, int32_t* received, int32_t* overflow) {
  constexpr int kPerThread = kMaxExperts / kCountThreads;
  const int thread = ThreadIndex(), experts = peers.local_experts;
  const auto count = [&](int member, int local) {
    if (capacity > 0) return capacity;
    const int32_t* const sent = peers.peer[member].sent + self * experts + local;
    return sent[1] - sent[0];
  };
  int rows = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int local = thread * kPerThread + i;
    for (int m = 0; m < peers.members && local < experts; ++m) rows += count(m, local);
  }
  int begin = ScanBlock(rows);
  for (int i = 0; i < kPerThread; ++i) {
    const int local = thread * kPerThread + i;
    if (local < experts) first[local] = min(begin, most_rows);
    for (int m = 0; m < peers.members && local < experts; ++m) {
      const int end = begin + count(m, local);
      received[m * experts + local] = min(end, most_rows) - min(begin, most_rows);
      begin = end;
    }
  }
  if (thread != kCountThreads - 1) return;
  first[experts] = min(begin, most_rows);
  if (begin > most_rows && overflow != nullptr) *overflow = 1;
}

/// What the lane `member` of a warp knows of the rows of one expert.
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
    const bool here = in_expert >= part.begin && in_expert < part.begin + part.count;
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
  const int experts = peers.local_experts, all = experts * OwnersOf(peers);
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
      peers.owners >= 0 && peers.owners <= peers.members && peers.local_experts >= 1 &&
      peers.local_experts <= kMaxExperts / OwnersOf(peers)) {
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
  const size_t vectors = bytes / sizeof(uint4), whole = vectors * sizeof(uint4);
  Launch("LinkCopy", stream, BlocksForCopy(vectors, ctas), kCopyThreads, 0, CopyKernel,
         static_cast<const uint4*>(from), static_cast<uint4*>(to), vectors,
         static_cast<const unsigned char*>(from) + whole, static_cast<unsigned char*>(to) + whole,
         static_cast<int>(bytes - whole));
}

void OrderedSum(Stream stream, const SumParts& parts, size_t n, int ctas) {
  CheckCtas("OrderedSum", ctas);
  if (parts.count < 0 || parts.count > kMaxPeers) {
    throw GpuError("OrderedSum: " + std::to_string(parts.count) + " parts; at most " +
                   std::to_string(kMaxPeers) + " are possible");
  }
  if (n == 0 || parts.count <= 1) return;
  bool aligned = n % 4 == 0;
  for (int p = 0; p < parts.count; ++p) aligned = aligned && Aligned(parts.part[p]);
  const size_t elements = aligned ? n / 4 : n;
  Launch("OrderedSum", stream, BlocksForCopy(elements, ctas), kCopyThreads, 0,
         aligned ? &SumKernel<float4> : &SumKernel<float>, parts, elements);
}

void PullToExperts(Stream stream, const ExchangePeers& peers, int self, int width, int capacity,
                   int most_rows, int32_t* first, int32_t* received, int32_t* overflow, int ctas) {
  const char* const name = "PullToExperts";
  CheckPeers(name, peers, self);
  CheckCtas(name, ctas);
  const ExchangePeer& mine = peers.peer[self];
  if (first != nullptr) {
    Launch("PullToExperts count", stream, 1, kCountThreads, 0, CountKernel, peers, self, capacity,
           most_rows, first, received, overflow);
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

}  // namespace contraflow::gpu
