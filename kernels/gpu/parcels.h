#pragma once

// The rows of an expert group whose members share no address space, where only the devices know how
// many there are. The rows of a member for another go into a parcel that has room for the most they
// can be, so that a message of fixed size carries them; the counts say how many are in it.

#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// The parcels of the member `self`, which owns experts [self * local_experts, ...). Rows lie in a
/// parcel by expert, then token.
struct Parcels {
  Bf16* out;  ///< [members x rows x width] for each member but this one
  Bf16* in;   ///< [members x rows x width] from each, what is for `self` already there when packed
  int rows;   ///< of a parcel; no member has more for another
  int width, members, self, local_experts;
};

/// Rows of the tokens of `self` (ExchangePeer in exchange.h: sent, tokens), sent_rows at most, into
/// the parcels for their experts' owners, and those that have come from there back to their places.
void PackTokens(Stream stream, const Parcels& parcels, const int32_t* sent, const Bf16* tokens,
                int sent_rows, int ctas);
void UnpackTokens(Stream stream, const Parcels& parcels, const int32_t* sent, Bf16* tokens,
                  int sent_rows, int ctas);

/// Rows of the experts of `self` (first, received, experts), most_rows at most, likewise.
void PackExperts(Stream stream, const Parcels& parcels, const int32_t* first,
                 const int32_t* received, const Bf16* experts, int most_rows, int ctas);
void UnpackExperts(Stream stream, const Parcels& parcels, const int32_t* first,
                   const int32_t* received, Bf16* experts, int most_rows, int ctas);

/// CountRows (exchange.h) out of what the members have sent: of `begins`, [members x (local_experts
/// + 1)], each row is the part of a member's `sent` that begins at this one's experts; its own is
/// read where it is, in `sent`.
void CountParcels(Stream stream, const Parcels& parcels, const int32_t* sent, const int32_t* begins,
                  int most_rows, int32_t* first, int32_t* received, int32_t* overflow);

}  // namespace contraflow::gpu
