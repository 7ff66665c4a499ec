#pragma once

#include <cstddef>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// What a step of AdamW needs that changes from step to step, read from device memory so that a
/// captured step can be replayed. The corrections are 1 / (1 - beta^step).
struct AdamWStepSize {
  float learning_rate, first_correction, second_correction;
};
/// What does not.
struct AdamWRates {
  float beta1, beta2, epsilon, weight_decay;
};

/// AdamW with decoupled weight decay on n parameters, as kernels/adamw.h has it; m and v are its
/// moments. copy[n] becomes the parameters in bf16. All blocks of a stage lie in one, so this is
/// the multi-tensor form: 30 bytes of traffic a parameter.
void AdamWStep(Stream stream, const AdamWStepSize* step, AdamWRates rates, size_t n,
               const float* gradient, float* m, float* v, float* parameter, Bf16* copy);

/// copy[n] = parameter[n] in bf16. Traffic: 6 bytes a parameter.
void RoundToBf16(Stream stream, size_t n, const float* parameter, Bf16* copy);

}  // namespace contraflow::gpu
