#include "kernels/host/random.h"

namespace contraflow {
namespace {

// The finaliser of SplitMix64: every bit of the input flips half of the bits of the result.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

}  // namespace

template <typename T>
void FillUniform(uint64_t key, float limit, size_t n, T* x) {
  for (size_t i = 0; i < n; ++i) {
    // 24 bits: what a float holds exactly.
    const uint64_t bits = Mix(key + (static_cast<uint64_t>(i) + 1) * kGolden) >> 40;
    const float unit = static_cast<float>(static_cast<int64_t>(bits) - (1 << 23)) / (1 << 23);
    x[i] = static_cast<T>(unit * limit);
  }
}

uint64_t DeriveKey(uint64_t key, uint64_t number) {
  return Mix(Mix(key + kGolden) ^ (number + 1) * kGolden);
}

template void FillUniform(uint64_t, float, size_t, float*);
template void FillUniform(uint64_t, float, size_t, double*);

}  // namespace contraflow
