#include "kernels/gpu/adamw.h"
#include "kernels/gpu/vector.h"

namespace contraflow::gpu {
namespace {

constexpr int kBlock = 256, kBlocksAnSm = 5;

unsigned Blocks(Stream stream, size_t vectors) {
  const size_t most = static_cast<size_t>(stream.sms) * kBlocksAnSm;
  return static_cast<unsigned>(std::clamp<size_t>((vectors + kBlock - 1) / kBlock, 1, most));
}
__device__ size_t First() {
  return static_cast<size_t>(blockIdx.x) * kBlock + static_cast<size_t>(threadIdx.x);
}
__device__ size_t Step() { return static_cast<size_t>(gridDim.x) * kBlock; }

/// The factors of a step: parameter = parameter * keep - rate * m / (sqrt(v) * spread + epsilon).
struct Factors {
  float beta1, beta2, epsilon, rate, spread, keep;
};

__device__ Factors FactorsOf(const AdamWStepSize& step, const AdamWRates& rates) {
  return {rates.beta1,
          rates.beta2,
          rates.epsilon,
          step.learning_rate * step.first_correction,
          sqrtf(step.second_correction),
          1.0f - step.learning_rate * rates.weight_decay};
}

template <int N>
__device__ void Update(const Factors& f, size_t i, const float* gradient, float* m, float* v,
                       float* parameter, Bf16* copy) {
  const Floats<N> g = LoadFloats<N>(gradient + i);
  Floats<N> first = LoadFloats<N>(m + i), second = LoadFloats<N>(v + i);
  Floats<N> p = LoadFloats<N>(parameter + i);
  CF_UNROLL
  for (int j = 0; j < N; ++j) {
    first.at[j] = f.beta1 * first.at[j] + (1.0f - f.beta1) * g.at[j];
    second.at[j] = f.beta2 * second.at[j] + (1.0f - f.beta2) * g.at[j] * g.at[j];
    p.at[j] =
        p.at[j] * f.keep - f.rate * first.at[j] / (sqrtf(second.at[j]) * f.spread + f.epsilon);
  }
  StoreFloats<N>(m + i, first);
  StoreFloats<N>(v + i, second);
  StoreFloats<N>(parameter + i, p);
  Store<N>(copy + i, Pack(p));
}

template <int N>
__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    AdamWKernel(const AdamWStepSize* step, AdamWRates rates, size_t n, const float* gradient,
                float* m, float* v, float* parameter, Bf16* copy) {
  const Factors factors = FactorsOf(*step, rates);
  const size_t whole = n / N * N;
  for (size_t i = First() * N; i < whole; i += Step() * N) {
    Update<N>(factors, i, gradient, m, v, parameter, copy);
  }
  const size_t rest = whole + First();
  if (rest < n) Update<1>(factors, rest, gradient, m, v, parameter, copy);
}

template <int N>
__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    RoundKernel(size_t n, const float* parameter, Bf16* copy) {
  const size_t whole = n / N * N;
  for (size_t i = First() * N; i < whole; i += Step() * N) {
    Store<N>(copy + i, Pack(LoadFloats<N>(parameter + i)));
  }
  const size_t rest = whole + First();
  if (rest < n) Store<1>(copy + rest, Pack(LoadFloats<1>(parameter + rest)));
}

}  // namespace

void AdamWStep(Stream stream, const AdamWStepSize* step, AdamWRates rates, size_t n,
               const float* gradient, float* m, float* v, float* parameter, Bf16* copy) {
  if (n == 0) return;
  if (Aligned(gradient, m, v, parameter) && Aligned(copy)) {
    Launch("AdamWStep", stream, Blocks(stream, n / 4), kBlock, 0, AdamWKernel<4>, step, rates, n,
           gradient, m, v, parameter, copy);
  } else {
    Launch("AdamWStep", stream, Blocks(stream, n), kBlock, 0, AdamWKernel<1>, step, rates, n,
           gradient, m, v, parameter, copy);
  }
}

void RoundToBf16(Stream stream, size_t n, const float* parameter, Bf16* copy) {
  if (n == 0) return;
  if (Aligned(parameter) && Aligned(copy)) {
    Launch("RoundToBf16", stream, Blocks(stream, n / 8), kBlock, 0, RoundKernel<8>, n, parameter,
           copy);
  } else {
    Launch("RoundToBf16", stream, Blocks(stream, n), kBlock, 0, RoundKernel<1>, n, parameter, copy);
  }
}

}  // namespace contraflow::gpu
