#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// y[rows x width] = silu(gate) * up, where each row of gate_up[rows x 2 * width] is gate, then up.
/// The number of rows is read from *rows on the device and at most most_rows; the others are left
/// alone. Traffic: 6 bytes a value of y.
void SwigluForward(Stream stream, const Bf16* gate_up, const int32_t* rows, int most_rows,
                   int width, Bf16* y);

/// dgate_up, in the layout of gate_up, from dy[rows x width]. Traffic: 10 bytes a value of dy.
void SwigluBackwardInput(Stream stream, const Bf16* gate_up, const Bf16* dy, const int32_t* rows,
                         int most_rows, int width, Bf16* dgate_up);

}  // namespace contraflow::gpu
