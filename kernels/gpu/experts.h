#pragma once

#include <compare>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Experts of one layer on one device. Expert e works on rows first[e] .. first[e + 1] of its
/// operands, which may be none; `first` is [experts + 1] in device memory and never read by the
/// host. Weights: gate_up[experts x width x 2 * inner], down[experts x inner x width]. width and
/// inner are multiples of 8.
struct ExpertsSizes {
  int experts, width, inner;
  int most_rows;  ///< rows that the operands have memory for

  auto operator<=>(const ExpertsSizes&) const = default;
};

// Grouped products by our own Hopper kernel (persistent, TMA, wgmma; experts.cu). The bits of a row
// depend on that row alone, those of a weight gradient on the rows of its expert alone: neither on
// the number of SMs nor on the other experts. Rows at and beyond first[experts] are not written,
// and what they hold, even NaN, changes nothing. Operands are 16-aligned.

/// gate_up_out[rows x 2 * inner] = x gate_up; hidden[rows x inner] = SwiGLU of it, in the epilogue;
/// y[rows x width] = hidden down.
void ExpertsForward(Stream stream, const ExpertsSizes& sizes, const int32_t* first, const Bf16* x,
                    const Bf16* gate_up, const Bf16* down, Bf16* gate_up_out, Bf16* hidden,
                    Bf16* y);

/// dgate_up_out[rows x 2 * inner], with the gradient of SwiGLU in the epilogue, and dx[rows x
/// width] from dy[rows x width].
void ExpertsBackwardInput(Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                          const Bf16* gate_up, const Bf16* down, const Bf16* gate_up_out,
                          const Bf16* dy, Bf16* dgate_up_out, Bf16* dx);

/// dgate_up += x^T dgate_up_out and ddown += hidden^T dy, expert by expert, in fp32 in place.
void ExpertsBackwardWeight(Stream stream, const ExpertsSizes& sizes, const int32_t* first,
                           const Bf16* x, const Bf16* hidden, const Bf16* dgate_up_out,
                           const Bf16* dy, float* dgate_up, float* ddown);

}  // namespace contraflow::gpu
