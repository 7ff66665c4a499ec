#pragma once

// Traffic from device to device: copies, sums, and the rows of an expert group.

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Most devices whose memory one kernel reads.
inline constexpr int kMaxPeers = 16;

/// A link between neighbours that share an address space: to[bytes] = from[bytes] by at most `ctas`
/// blocks, which is what bounds its bandwidth and the SMs it takes. Both are 16-aligned.
void LinkCopy(Stream stream, const void* from, void* to, size_t bytes, int ctas);

/// Buffers of several devices.
struct SumParts {
  float* part[kMaxPeers];
  int count;
};
/// Every part becomes their sum, added element by element in the order of the parts: all get the
/// same bits.
void OrderedSum(Stream stream, const SumParts& parts, size_t n, int ctas);

/// View of one member of an expert group for the others. Counts as in runtime/model/views.h: sent
/// is [experts + 1], first [local_experts + 1], received [members x local_experts].
struct ExchangePeer {
  const int32_t* sent;      ///< where the rows it sends to each expert begin, in `tokens`
  Bf16* tokens;             ///< its rows, by expert then token
  const int32_t* first;     ///< where the rows of each of its experts begin, in `experts`
  const int32_t* received;  ///< how many of them are each member's
  Bf16* experts;            ///< its experts' rows, by expert, then member, then token
};
struct ExchangePeers {
  ExchangePeer peer[kMaxPeers];
  int members;        ///< of the group
  int local_experts;  ///< of each member
};

/// Counts what the member `self`, which owns experts [self * local_experts, ...), gets in
/// DISPATCH_F: its `first` and `received`. If that is more than most_rows rows, *overflow = 1, and
/// they leave out the rest, so that their readers stay in bounds. Counts stay on the device. A
/// `capacity` above 0 is what SortByExpert (routing.h) sorted with: every member sends as many rows
/// to every expert.
void CountRows(Stream stream, const ExchangePeers& peers, int self, int capacity, int most_rows,
               int32_t* first, int32_t* received, int32_t* overflow);

/// DISPATCH_F and COMBINE_B of the member `self`: pulls its experts' rows, `width` wide, out of
/// every member's tokens. If `first` and `received` are not null it counts them before (CountRows,
/// DISPATCH_F), otherwise it reads those that its peer entry points at.
void PullToExperts(Stream stream, const ExchangePeers& peers, int self, int width, int capacity,
                   int most_rows, int32_t* first, int32_t* received, int32_t* overflow, int ctas);

/// COMBINE_F and DISPATCH_B of the member `self`: pulls the rows of its tokens, sent_rows at most,
/// from the owners of their experts, in the order in which it sent them. Rows that found no room
/// there become 0.
void PullToTokens(Stream stream, const ExchangePeers& peers, int self, int width, int sent_rows,
                  int ctas);

/// The parts of a sum of n elements, on the device that adds them up: its own in place, those of
/// other devices one after the other, in order.
struct Slices {
  float* own;           ///< [n] the part `self`; becomes the sum
  const float* others;  ///< [parts - 1 x stride]
  size_t stride;        ///< at least n
  int parts, self;
};

/// own = part 0 + part 1 + ..., element by element in the order of the parts, whichever `self` is.
void AddSlices(Stream stream, const Slices& slices, size_t n, int ctas);

/// Copies `parts` parts of `bytes` each: part p from from + p * from_stride to to + p * to_stride,
/// by at most `ctas` blocks. All of them, the strides too, are multiples of 16 bytes.
void CopyParts(Stream stream, const void* from, size_t from_stride, void* to, size_t to_stride,
               size_t bytes, int parts, int ctas);

/// The counts of an exchange in which every member sends `capacity` rows to every expert (as
/// runtime/model/views.h has them): first[local_experts + 1], received[members x local_experts].
void SetCounts(Stream stream, int32_t* first, int32_t* received, int members, int local_experts,
               int capacity);

}  // namespace contraflow::gpu
