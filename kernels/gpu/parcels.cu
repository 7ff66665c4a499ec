#include <algorithm>
#include <string>

#include "kernels/gpu/exchange_counts.h"
#include "kernels/gpu/parcels.h"
#include "kernels/gpu/routing.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {
namespace {

constexpr int kParcelThreads = 512;

/// Place of a row of the parcel for, or from, a member.
template <bool kPack>
__device__ Bf16* RowOf(const Parcels& p, int member, int row) {
  Bf16* const all = kPack && member != p.self ? p.out : p.in;
  return Row(all, member * p.rows + row, p.width);
}

template <int N, bool kPack>
__device__ void Move(Bf16* row, Bf16* in_parcel, int width) {
  kPack ? CopyRow<N>(row, in_parcel, width) : CopyRow<N>(in_parcel, row, width);
}

template <int N, bool kPack>
__global__ void __launch_bounds__(kParcelThreads)
    TokensKernel(const __grid_constant__ Parcels p, const int32_t* sent, Bf16* tokens,
                 int sent_rows) {
  const int experts = p.local_experts * p.members;
  const int rows = min(sent[experts], sent_rows);
  for (int row = WarpInGrid(); row < rows; row += WarpsOfGrid()) {
    const int member = (CountUpTo(sent, experts, row) - 1) / p.local_experts;
    Bf16* const there = RowOf<kPack>(p, member, row - sent[member * p.local_experts]);
    Move<N, kPack>(Row(tokens, row, p.width), there, p.width);
  }
}

/// The sum of x over the warp.
__device__ int SumOverWarp(int x) { return __shfl_sync(~0u, ScanWarp(x), kWarp - 1); }

template <int N, bool kPack>
__global__ void __launch_bounds__(kParcelThreads)
    ExpertsKernel(const __grid_constant__ Parcels p, const int32_t* first, const int32_t* received,
                  Bf16* experts, int most_rows) {
  const int local_experts = p.local_experts;
  const int rows = min(first[local_experts], most_rows);
  for (int row = WarpInGrid(); row < rows; row += WarpsOfGrid()) {
    const int local = CountUpTo(first, local_experts, row) - 1;
    // Whose row it is: the members' rows of an expert are contiguous. A warp looks at 32
    // members at a time.
    int in_part = row - first[local], member = 0;
    for (int begin = 0; begin < p.members; begin += kWarp) {
      const int mine = begin + Lane();
      const int count = mine < p.members ? received[mine * local_experts + local] : 0;
      const int up_to_here = ScanWarp(count);
      const unsigned behind = __ballot_sync(~0u, in_part < up_to_here);
      if (behind != 0) {
        const int lane = __ffs(static_cast<int>(behind)) - 1;
        in_part -= __shfl_sync(~0u, up_to_here - count, lane);
        member = begin + lane;
        break;
      }
      in_part -= __shfl_sync(~0u, up_to_here, kWarp - 1);
    }
    // In the parcel it is after the rows of the experts before.
    int before = 0;
    for (int e = Lane(); e < local; e += kWarp) before += received[member * local_experts + e];
    Bf16* const there = RowOf<kPack>(p, member, SumOverWarp(before) + in_part);
    Move<N, kPack>(Row(experts, row, p.width), there, p.width);
  }
}

__global__ void __launch_bounds__(kCountThreads)
    CountParcelsKernel(const __grid_constant__ Parcels p, const int32_t* sent,
                       const int32_t* begins, int most_rows, int32_t* first, int32_t* received,
                       int32_t* overflow) {
  const auto count = [&](int member, int local) {
    const int32_t* const begin =
        (member == p.self ? sent + p.self * p.local_experts
                          : begins + static_cast<ptrdiff_t>(member) * (p.local_experts + 1)) +
        local;
    return begin[1] - begin[0];
  };
  WriteCounts(count, p.members, p.local_experts, most_rows, first, received, overflow);
}

void CheckParcels(const char* name, const Parcels& p, int ctas) {
  if (p.members >= 1 && p.self >= 0 && p.self < p.members && p.local_experts >= 1 && p.rows >= 0 &&
      p.local_experts <= kMaxExperts / p.members && ctas >= 1) {
    return;
  }
  throw GpuError(std::string(name) + ": member " + std::to_string(p.self) + " of " +
                 std::to_string(p.members) + ", " + std::to_string(p.local_experts) +
                 " experts each, parcels of " + std::to_string(p.rows) + " rows, " +
                 std::to_string(ctas) + " CTAs; at most " + std::to_string(kMaxExperts) +
                 " experts in all are possible");
}

/// A warp for each of at most this many rows.
unsigned BlocksFor(int rows, int ctas) {
  return Unsigned(std::clamp(CeilDiv(rows, kParcelThreads / kWarp), 1, ctas));
}

bool Wide(const Parcels& p, const Bf16* rows) {
  return p.width % kWide == 0 && Aligned(p.out, p.in, rows);
}

template <bool kPack>
void MoveTokens(const char* name, Stream stream, const Parcels& parcels, const int32_t* sent,
                Bf16* tokens, int sent_rows, int ctas) {
  CheckParcels(name, parcels, ctas);
  if (sent_rows == 0) return;
  Launch(name, stream, BlocksFor(sent_rows, ctas), kParcelThreads, 0,
         Wide(parcels, tokens) ? &TokensKernel<kWide, kPack> : &TokensKernel<1, kPack>, parcels,
         sent, tokens, sent_rows);
}

template <bool kPack>
void MoveExperts(const char* name, Stream stream, const Parcels& parcels, const int32_t* first,
                 const int32_t* received, Bf16* experts, int most_rows, int ctas) {
  CheckParcels(name, parcels, ctas);
  if (most_rows == 0) return;
  Launch(name, stream, BlocksFor(most_rows, ctas), kParcelThreads, 0,
         Wide(parcels, experts) ? &ExpertsKernel<kWide, kPack> : &ExpertsKernel<1, kPack>, parcels,
         first, received, experts, most_rows);
}

}  // namespace

void PackTokens(Stream stream, const Parcels& parcels, const int32_t* sent, const Bf16* tokens,
                int sent_rows, int ctas) {
  MoveTokens<true>("PackTokens", stream, parcels, sent, const_cast<Bf16*>(tokens), sent_rows, ctas);
}

void UnpackTokens(Stream stream, const Parcels& parcels, const int32_t* sent, Bf16* tokens,
                  int sent_rows, int ctas) {
  MoveTokens<false>("UnpackTokens", stream, parcels, sent, tokens, sent_rows, ctas);
}

void PackExperts(Stream stream, const Parcels& parcels, const int32_t* first,
                 const int32_t* received, const Bf16* experts, int most_rows, int ctas) {
  MoveExperts<true>("PackExperts", stream, parcels, first, received, const_cast<Bf16*>(experts),
                    most_rows, ctas);
}

void UnpackExperts(Stream stream, const Parcels& parcels, const int32_t* first,
                   const int32_t* received, Bf16* experts, int most_rows, int ctas) {
  MoveExperts<false>("UnpackExperts", stream, parcels, first, received, experts, most_rows, ctas);
}

void CountParcels(Stream stream, const Parcels& parcels, const int32_t* sent, const int32_t* begins,
                  int most_rows, int32_t* first, int32_t* received, int32_t* overflow) {
  CheckParcels("CountParcels", parcels, 1);
  Launch("CountParcels", stream, 1, kCountThreads, 0, CountParcelsKernel, parcels, sent, begins,
         most_rows, first, received, overflow);
}

}  // namespace contraflow::gpu
