#pragma once

// Rows of bf16 values that a warp each reads and writes, in vectors of 8 where the width allows it
// and value by value where not. Included by .cu files only.

#include <algorithm>

#include "kernels/simt.h"

namespace contraflow::gpu {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarp;
/// Blocks of kRowThreads that an SM can hold at once: a thread may have 64 registers.
inline constexpr int kRowBlocks = 4;
/// Values of a row that a lane reads at once where the width is a multiple of it.
inline constexpr int kWide = 8;

/// Blocks for work of a warp each: as many as the stream's SMs hold at once, each warp going on
/// until nothing is left.
inline unsigned BlocksForRows(Stream stream, int rows) {
  const int most = std::max(stream.sms, 1) * kRowBlocks;
  return static_cast<unsigned>(std::max(std::min(CeilDiv(rows, kRowWarps), most), 1));
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
/// Number of the running warp in the grid, and how many there are.
__device__ inline int WarpInGrid() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
}
__device__ inline int WarpsOfGrid() { return static_cast<int>(gridDim.x * blockDim.x) / kWarp; }

/// The row `row` of a matrix of this width.
template <typename T>
__device__ inline T* Row(T* matrix, int row, int width) {
  return matrix + static_cast<ptrdiff_t>(row) * width;
}

template <int N>
struct RowVectorOf;
template <>
struct RowVectorOf<1> {
  using Type = Bf16;
};
template <>
struct RowVectorOf<kWide> {
  using Type = uint4;
};
/// N neighbouring values of a row, read and written at once.
template <int N>
using RowVector = typename RowVectorOf<N>::Type;

template <int N>
__device__ inline const RowVector<N>* AsVectors(const Bf16* row) {
  return reinterpret_cast<const RowVector<N>*>(row);
}
template <int N>
__device__ inline RowVector<N>* AsVectors(Bf16* row) {
  return reinterpret_cast<RowVector<N>*>(row);
}

/// Values of a vector as floats.
template <int N>
struct Floats {
  float at[N];
};

__device__ inline Floats<1> ToFloats(Bf16 x) { return {{ToFloat(x)}}; }
__device__ inline Floats<kWide> ToFloats(const uint4& x) {
  const unsigned pair[4] = {x.x, x.y, x.z, x.w};
  Floats<kWide> floats;
  for (int i = 0; i < 4; ++i) {
    floats.at[2 * i] = std::bit_cast<float>(pair[i] << 16);
    floats.at[2 * i + 1] = std::bit_cast<float>(pair[i] & 0xffff0000u);
  }
  return floats;
}

__device__ inline Bf16 ToVector(const Floats<1>& x) { return ToBf16(x.at[0]); }
__device__ inline uint4 ToVector(const Floats<kWide>& x) {
  unsigned pair[4];
  for (int i = 0; i < 4; ++i) {
    pair[i] = ToBf16(x.at[2 * i]).bits | static_cast<unsigned>(ToBf16(x.at[2 * i + 1]).bits) << 16;
  }
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/// to[width] = from[width] by the running warp; several vectors of a lane are under way at a time.
template <int N>
__device__ inline void CopyRow(const Bf16* from, Bf16* to, int width) {
  constexpr int kUnderWay = 8;
  const RowVector<N>* const source = AsVectors<N>(from);
  RowVector<N>* const target = AsVectors<N>(to);
  const int vectors = width / N;
  for (int begin = Lane(); begin < vectors; begin += kWarp * kUnderWay) {
    RowVector<N> held[kUnderWay] = {};
    for (int i = 0; i < kUnderWay; ++i) {
      if (begin + i * kWarp < vectors) held[i] = source[begin + i * kWarp];
    }
    for (int i = 0; i < kUnderWay; ++i) {
      if (begin + i * kWarp < vectors) target[begin + i * kWarp] = held[i];
    }
  }
}

/// to[width] = 0 by the running warp.
template <int N>
__device__ inline void ZeroRow(Bf16* to, int width) {
  for (int i = Lane(); i < width / N; i += kWarp) AsVectors<N>(to)[i] = RowVector<N>{};
}

}  // namespace contraflow::gpu
