#include "kernels/host/random.h"

namespace contraflow {
template <typename T>
void FillUniform(uint64_t key, float limit, size_t n, T* x) {
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<T>(UniformDraw(key, limit, i));
}

uint64_t DeriveKey(uint64_t key, uint64_t number) {
  return MixBits(MixBits(key + kGoldenRatio) ^ (number + 1) * kGoldenRatio);
}

template void FillUniform(uint64_t, float, size_t, float*);
template void FillUniform(uint64_t, float, size_t, double*);

}  // namespace contraflow
