#pragma once

#include <bit>
#include <cstdint>

// Functions of both sides, host and device.
#ifdef __CUDACC__
#define CF_BOTH __host__ __device__
#else
#define CF_BOTH
#endif

namespace contraflow::gpu {

/// bfloat16, the upper half of a float: what values and weights are stored in on a GPU. Sums are
/// never kept in it.
struct Bf16 {
  uint16_t bits;

  bool operator==(const Bf16&) const = default;
};

CF_BOTH inline float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
CF_BOTH inline float ToFloat(float x) { return x; }

/// Rounds to nearest, ties to even; NaN stays NaN, not always the same.
CF_BOTH inline Bf16 ToBf16(float x) {
#ifdef __CUDA_ARCH__
  Bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

/// `value` as an element of type T.
template <typename T>
CF_BOTH inline T FromFloat(float value);
template <>
CF_BOTH inline Bf16 FromFloat<Bf16>(float value) {
  return ToBf16(value);
}
template <>
CF_BOTH inline float FromFloat<float>(float value) {
  return value;
}

}  // namespace contraflow::gpu
