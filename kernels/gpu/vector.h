#pragma once

// Parts of streaming kernels: values moved 16 bytes at a time. Included by .cu files only.

#include <algorithm>

#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

/// Whether all of these can be moved 16 bytes at a time; null can.
template <typename... T>
bool Aligned(const T*... at) {
  return ((reinterpret_cast<uintptr_t>(at) % 16 == 0) && ...);
}

template <int N>
struct Floats {
  float at[N];
};

/// N values as they are in memory. Element 2i is the lower half of word i.
template <int N>
struct Bf16s {
  uint32_t words[N / 2];
};
template <>
struct Bf16s<1> {
  Bf16 value;
};

template <int N>
__device__ inline Floats<N> Unpack(const Bf16s<N>& packed) {
  Floats<N> values;
  if constexpr (N == 1) {
    values.at[0] = ToFloat(packed.value);
  } else {
    CF_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      values.at[2 * i] = LowHalf(packed.words[i]);
      values.at[2 * i + 1] = HighHalf(packed.words[i]);
    }
  }
  return values;
}

template <int N>
__device__ inline Bf16s<N> Pack(const Floats<N>& values) {
  Bf16s<N> packed;
  if constexpr (N == 1) {
    packed.value = ToBf16(values.at[0]);
  } else {
    CF_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      packed.words[i] = PackBf16(values.at[2 * i], values.at[2 * i + 1]);
    }
  }
  return packed;
}

/// 8 values as one vector of 16 bytes, which must be aligned to that; 1 or 2 one by one.
template <int N>
__device__ inline Bf16s<N> Load(const Bf16* from) {
  static_assert(N == 1 || N == 2 || N == 8);
  if constexpr (N == 1) {
    return {*from};
  } else if constexpr (N == 2) {
    return {{static_cast<uint32_t>(from[1].bits) << 16 | from[0].bits}};
  } else {
    const uint4 v = Load16(from);
    return {{v.x, v.y, v.z, v.w}};
  }
}
template <int N>
__device__ inline void Store(Bf16* to, const Bf16s<N>& v) {
  static_assert(N == 1 || N == 2 || N == 4 || N == 8);
  if constexpr (N == 1) {
    *to = v.value;
  } else if constexpr (N == 2) {
    to[0].bits = static_cast<uint16_t>(v.words[0]);
    to[1].bits = static_cast<uint16_t>(v.words[0] >> 16);
  } else if constexpr (N == 4) {
    Store8(to, make_uint2(v.words[0], v.words[1]));
  } else {
    Store16(to, make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
  }
}

/// Multiples of 4 as vectors of 16 bytes, fewer one by one.
template <int N>
__device__ inline Floats<N> LoadFloats(const float* from) {
  Floats<N> values;
  if constexpr (N % 4 == 0) {
    CF_UNROLL
    for (int i = 0; i < N; i += 4) {
      const uint4 v = Load16(from + i);
      values.at[i] = std::bit_cast<float>(v.x);
      values.at[i + 1] = std::bit_cast<float>(v.y);
      values.at[i + 2] = std::bit_cast<float>(v.z);
      values.at[i + 3] = std::bit_cast<float>(v.w);
    }
  } else {
    CF_UNROLL
    for (int i = 0; i < N; ++i) values.at[i] = from[i];
  }
  return values;
}
template <int N>
__device__ inline void StoreFloats(float* to, const Floats<N>& values) {
  if constexpr (N % 4 == 0) {
    CF_UNROLL
    for (int i = 0; i < N; i += 4) {
      Store16(to + i, make_uint4(std::bit_cast<uint32_t>(values.at[i]),
                                 std::bit_cast<uint32_t>(values.at[i + 1]),
                                 std::bit_cast<uint32_t>(values.at[i + 2]),
                                 std::bit_cast<uint32_t>(values.at[i + 3])));
    }
  } else {
    CF_UNROLL
    for (int i = 0; i < N; ++i) to[i] = values.at[i];
  }
}

}  // namespace contraflow::gpu
