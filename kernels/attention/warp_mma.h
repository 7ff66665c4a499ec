#pragma once

// Products of small matrices by a whole warp: PTX that C++ cannot say, and beside it what stands
// for it in the emulator. Included by .cu files only. Lane l has, with g = l / 4 and t = l % 4, in
// fragments of
//   a [16 x 16]   (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with its right neighbour
//   b [16 x 8]    (2t, g) (2t + 8, g), each with its lower neighbour
//   d [16 x 8]    (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
// and lower addresses in the lower half of a word.

#include <bit>
#include <cstdint>

#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

__device__ inline float LowHalf(uint32_t word) { return std::bit_cast<float>(word << 16); }
__device__ inline float HighHalf(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

#ifdef __CUDACC__

/// Two floats as bf16, the first in the lower half.
__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x to about 2^-22; 0 for minus infinity.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// d += a b, in fp32.
__device__ inline void WarpMma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices from shared memory: lane l names row l % 8 of matrix l / 8,
/// 16-aligned. It gets of each matrix m elements (g, 2t) and (g, 2t + 1) in word m.
__device__ inline void LoadMatrices(uint32_t (&words)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same of the transposed matrices: elements (2t, g) and (2t + 1, g).
__device__ inline void LoadTransposed(uint32_t (&words)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

#else

inline uint32_t PackBf16(float low, float high) {
  return ToBf16(low).bits | static_cast<uint32_t>(ToBf16(high).bits) << 16;
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
  // Kept until all lanes have read them: nobody comes to the product after the next before that.
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

#endif

}  // namespace contraflow::gpu
