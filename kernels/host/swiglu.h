#pragma once

namespace contraflow {

/// y[rows x width] = silu(gate) * up, where each row of gate_up[rows x 2 * width] is gate, then up.
template <typename T>
void SwigluForward(const T* gate_up, int rows, int width, T* y);

/// Gradient of gate and up, in the layout of gate_up. Rows of dy are `stride` elements apart; it
/// may be the second halves of the rows of dgate_up. Has no weights of its own.
template <typename T>
void SwigluBackwardInput(const T* gate_up, const T* dy, int stride, int rows, int width,
                         T* dgate_up);

}  // namespace contraflow
