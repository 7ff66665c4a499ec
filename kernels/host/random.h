#pragma once

#include <cstddef>
#include <cstdint>

namespace contraflow {

/// The finaliser of SplitMix64: every bit of the input flips half of the bits of the result.
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15u;

/// A draw from the uniform distribution on [-limit, limit) that depends on (key, i) alone. Built
/// from integer mixing and exact float arithmetic, so equal on every machine and standard library,
/// and on a GPU.
constexpr float UniformDraw(uint64_t key, float limit, uint64_t i) {
  // 24 bits: what a float holds exactly.
  const uint64_t bits = MixBits(key + (i + 1) * kGoldenRatio) >> 40;
  return static_cast<float>(static_cast<int64_t>(bits) - (1 << 23)) / (1 << 23) * limit;
}

/// x[i] = UniformDraw(key, limit, i).
template <typename T>
void FillUniform(uint64_t key, float limit, size_t n, T* x);

/// A key from a key and one more number; distinct paths of numbers give unrelated keys.
uint64_t DeriveKey(uint64_t key, uint64_t number);

}  // namespace contraflow
