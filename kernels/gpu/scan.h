#pragma once

// Sums of integers over the lanes of a warp and the threads of a block, and a search in sorted
// ones. Included by .cu files only.

#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

/// The sum of the values of the lanes up to this one, its own included.
__device__ inline int ScanWarp(int value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

/// The sum of the values of the threads before this one. Called by every thread of a block of at
/// most 32 whole warps.
__device__ inline int ScanBlock(int value) {
  __shared__ int of_warp[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int up_to_here = ScanWarp(value);
  if (lane == kWarp - 1) of_warp[warp] = up_to_here;
  __syncthreads();
  int before = up_to_here - value;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  // The next scan may write to it.
  __syncthreads();
  return before;
}

/// How many of sorted[n], ascending, are at most `value`; the warp searches as one.
__device__ inline int CountUpTo(const int32_t* sorted, int n, int value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int begin = 0;
  while (n > 0) {
    // Each lane looks at the last of its share; those that are small enough come first.
    const int share = CeilDiv(n, kWarp);
    const int last = (lane + 1) * share - 1;
    const bool small = last < n && sorted[begin + last] <= value;
    const int passed = __popc(__ballot_sync(~0u, small)) * share;
    begin += passed;
    n = min(n - passed, share - 1);
  }
  return begin;
}

}  // namespace contraflow::gpu
