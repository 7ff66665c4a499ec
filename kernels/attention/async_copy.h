#pragma once

// Copies from global to shared memory that go on while the thread does other things (cp.async), and
// beside them what stands for them in the emulator: copies as late as they may be, so that a
// missing wait changes results. Included by .cu files only.

#include <cstdint>

#include "kernels/gpu/simt.h"

#ifndef __CUDACC__
#include <vector>
#endif

namespace contraflow::gpu {

#ifdef __CUDACC__

/// Begins to copy kBytes, 16 or 4, aligned to as many; zeros, without reading, unless `valid`.
template <int kBytes>
__device__ inline void AsyncCopy(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  }
}

/// The copies that the thread has begun since the last call are a group.
__device__ inline void AsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kGroups of the thread's groups are under way. Others' need a barrier too.
template <int kGroups>
__device__ inline void AsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

#else

struct EmulatedCopy {
  void* to;
  const void* from;
  size_t bytes;
  bool valid;
};
/// What a thread has begun: groups, the last of them not committed yet.
inline std::vector<std::vector<EmulatedCopy> >& EmulatedCopies() {
  static std::vector<std::vector<std::vector<EmulatedCopy> > > of_thread(1024);
  return of_thread[emulator::ThreadNumber()];
}

template <int kBytes>
void AsyncCopy(void* shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 16);
  if (reinterpret_cast<uintptr_t>(shared) % kBytes != 0 ||
      reinterpret_cast<uintptr_t>(global) % kBytes != 0) {
    throw GpuError("cp.async: misaligned address");
  }
  auto& groups = EmulatedCopies();
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({shared, global, kBytes, valid});
}

inline void AsyncCommit() {
  auto& groups = EmulatedCopies();
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}

template <int kGroups>
void AsyncWait() {
  auto& groups = EmulatedCopies();
  while (groups.size() > kGroups + 1) {
    for (const EmulatedCopy& copy : groups.front()) {
      if (copy.valid) {
        std::memcpy(copy.to, copy.from, copy.bytes);
      } else {
        std::memset(copy.to, 0, copy.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

#endif

}  // namespace contraflow::gpu
