#pragma once

// The instructions of kernels/attention/mma_tiles.h, which includes this, on the host. Copies are
// done as late as they may be, so that a missing wait changes results.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

struct EmulatedCopy {
  void* to;
  const void* from;
  size_t bytes;
  bool valid;
};
/// Copies that a thread has begun: groups, the last of them not committed yet.
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

inline float Exp2(float x) { return std::exp2(x); }

inline float HalfOf(uint32_t word, unsigned half) {
  return half == 0 ? LowHalf(word) : HighHalf(word);
}

inline void WarpMma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  constexpr unsigned kMaxThreads = 1024, kLanes = 32;
  struct Fragments {
    uint32_t a[4], b[2];
  };
  // Two sets suffice: no lane reaches the product after the next before all have read them.
  static Fragments kept[2][kMaxThreads];
  static unsigned turn[kMaxThreads];
  const unsigned self = emulator::ThreadNumber(), lane = self % kLanes;
  Fragments& mine = kept[turn[self]++ % 2][self];
  mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const uint64_t* all = emulator::WarpExchange(~0u, reinterpret_cast<uintptr_t>(&mine), "mma");
  const unsigned g = lane / 4, t = lane % 4;
  for (unsigned k = 0; k < 16; ++k) {
    // Whose word, and which: columns of a, rows of b.
    const unsigned owner = k % 8 / 2, word = k / 8;
    const auto* left = reinterpret_cast<const Fragments*>(all[g * 4 + owner]);
    const float above = HalfOf(left->a[2 * word], k % 2);
    const float below = HalfOf(left->a[2 * word + 1], k % 2);
    for (unsigned j = 0; j < 2; ++j) {
      const auto* right = reinterpret_cast<const Fragments*>(all[(2 * t + j) * 4 + owner]);
      const float factor = HalfOf(right->b[word], k % 2);
      d[j] += above * factor;
      d[j + 2] += below * factor;
    }
  }
}

inline void LoadWords(uint32_t (&words)[4], const Bf16* row, bool transposed, const char* what) {
  const unsigned lane = emulator::ThreadNumber() % 32, g = lane / 4, t = lane % 4;
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw GpuError("ldmatrix: misaligned row");
  const uint64_t* all = emulator::WarpExchange(~0u, reinterpret_cast<uintptr_t>(row), what);
  for (unsigned m = 0; m < 4; ++m) {
    const auto at = [&](unsigned i, unsigned j) -> uint32_t {
      return reinterpret_cast<const Bf16*>(all[m * 8 + i])[j].bits;
    };
    words[m] =
        transposed ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
  }
}

inline void LoadMatrices(uint32_t (&words)[4], const Bf16* row) {
  LoadWords(words, row, false, "ldmatrix");
}
inline void LoadTransposed(uint32_t (&words)[4], const Bf16* row) {
  LoadWords(words, row, true, "ldmatrix.trans");
}

}  // namespace contraflow::gpu
