#pragma once

// The experts of a layer, and SwiGLU, which is in each of them.

#include <cstdint>

namespace contraflow {

/// y[rows x width] = silu(gate) * up, where each row of gate_up[rows x 2 * width] is gate, then up.
template <typename T>
void SwigluForward(const T* gate_up, int rows, int width, T* y);

/// Gradient of gate and up, in the layout of gate_up. Rows of dy are `stride` elements apart; it
/// may be the second halves of the rows of dgate_up. Has no weights of its own.
template <typename T>
void SwigluBackwardInput(const T* gate_up, const T* dy, int stride, int rows, int width,
                         T* dgate_up);

/// Experts of one layer: expert e works on rows first[e] .. first[e + 1] of the sorted tokens,
/// which may be none. Weights: gate_up[experts x width x 2 * inner], down[experts x inner x width].
struct ExpertsShape {
  int experts, width, inner;
  const int32_t* first;  ///< [experts + 1]
};

/// gate_up_out[rows x 2 * inner] = x gate_up; hidden[rows x inner] = SwiGLU of it;
/// y[rows x width] = hidden down.
template <typename T>
void ExpertsForward(const ExpertsShape& shape, const T* x, const T* gate_up, const T* down,
                    T* gate_up_out, T* hidden, T* y);

/// dgate_up_out and dx from dy. The rows of dgate_up_out hold the gradients of hidden meanwhile.
template <typename T>
void ExpertsBackwardInput(const ExpertsShape& shape, const T* gate_up, const T* down,
                          const T* gate_up_out, const T* dy, T* dgate_up_out, T* dx);

/// dgate_up += x^T dgate_up_out and ddown += hidden^T dy, expert by expert. The gradient of an
/// expert without tokens is left as it is.
template <typename T>
void ExpertsBackwardWeight(const ExpertsShape& shape, const T* x, const T* hidden,
                           const T* dgate_up_out, const T* dy, T* dgate_up, T* ddown);

}  // namespace contraflow
