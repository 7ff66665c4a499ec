#pragma once

// Which rows come to the experts of a member, out of how many each member sends. Included by .cu
// files only.

#include <cstdint>

#include "kernels/gpu/routing.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

inline constexpr int kCountThreads = 256;

/// Computed by one block of kCountThreads: `first` and `received` as ExchangePeer has them, from
/// count(member, local), the rows that a member sends to a local expert. Rows beyond most_rows are
/// left out, so that whoever reads them stays inside, and *overflow becomes 1.
template <typename Count>
__device__ void WriteCounts(const Count& count, int members, int experts, int most_rows,
                            int32_t* first, int32_t* received, int32_t* overflow) {
  constexpr int kPerThread = kMaxExperts / kCountThreads;
  const int thread = ThreadIndex();
  int rows = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int local = thread * kPerThread + i;
    for (int m = 0; m < members && local < experts; ++m) rows += count(m, local);
  }
  int begin = ScanBlock(rows);
  for (int i = 0; i < kPerThread; ++i) {
    const int local = thread * kPerThread + i;
    if (local < experts) first[local] = min(begin, most_rows);
    for (int m = 0; m < members && local < experts; ++m) {
      const int end = begin + count(m, local);
      received[m * experts + local] = min(end, most_rows) - min(begin, most_rows);
      begin = end;
    }
  }
  if (thread != kCountThreads - 1) return;
  first[experts] = min(begin, most_rows);
  if (begin > most_rows && overflow != nullptr) *overflow = 1;
}

}  // namespace contraflow::gpu
