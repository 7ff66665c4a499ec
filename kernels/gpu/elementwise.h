#pragma once

// Kernels that do as much to each value as to its neighbours: the rotary embedding, SwiGLU, AdamW,
// draws.

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Values of a step of AdamW that change from step to step, read from device memory so that a
/// captured step can be replayed. The corrections are 1 / (1 - beta^step).
struct AdamWStepSize {
  float learning_rate, first_correction, second_correction;
};
/// Values that stay the same from step to step.
struct AdamWRates {
  float beta1, beta2, epsilon, weight_decay;
};

/// AdamW with decoupled weight decay on n parameters, as kernels/host/adamw.h has it; m and v are
/// its moments. copy[n] becomes the parameters in bf16. All blocks of a stage lie in one, so this
/// is the multi-tensor form: 30 bytes of traffic a parameter. Changes no value if *not_finite or
/// *failed is not 0; `failed` may be null.
void AdamWStep(Stream stream, const AdamWStepSize* step, AdamWRates rates, size_t n,
               const float* gradient, float* m, float* v, float* parameter, Bf16* copy,
               const int32_t* not_finite, const int32_t* failed);

/// copy[n] = parameter[n] in bf16. Traffic: 6 bytes a parameter.
void RoundToBf16(Stream stream, size_t n, const float* parameter, Bf16* copy);

/// x[i] = UniformDraw(key, limit, i), the bits of the host's FillUniform. Traffic: 4 bytes a value.
void FillUniform(Stream stream, uint64_t key, float limit, size_t n, float* x);

/// Rotates, in place, the pairs (2i, 2i + 1) of every head of the queries and keys in
/// qkv[rows x 3 * heads * head_width] by the angle of the row's position, row mod sequence.
/// cosine, sine [sequence x head_width / 2] as FillRopeTable makes them; head_width is even.
/// Traffic: 4 bytes a value of queries and keys, and the tables.
void RopeForward(Stream stream, const float* cosine, const float* sine, int rows, int sequence,
                 int heads, int head_width, Bf16* qkv);

/// The inverse rotation, of gradients.
void RopeBackwardInput(Stream stream, const float* cosine, const float* sine, int rows,
                       int sequence, int heads, int head_width, Bf16* dqkv);

/// y[rows x width] = silu(gate) * up, where each row of gate_up[rows x 2 * width] is gate, then up.
/// The number of rows is read from *rows on the device and at most most_rows; the others are left
/// alone. Traffic: 6 bytes a value of y.
void SwigluForward(Stream stream, const Bf16* gate_up, const int32_t* rows, int most_rows,
                   int width, Bf16* y);

/// dgate_up, in the layout of gate_up, from dy[rows x width]. Traffic: 10 bytes a value of dy.
void SwigluBackwardInput(Stream stream, const Bf16* gate_up, const Bf16* dy, const int32_t* rows,
                         int most_rows, int width, Bf16* dgate_up);

}  // namespace contraflow::gpu
