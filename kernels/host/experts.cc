#include "kernels/host/experts.h"

#include <cmath>
#include <cstddef>

#include "kernels/host/linear.h"

namespace contraflow {
namespace {

template <typename T>
T Sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

}  // namespace

template <typename T>
void SwigluForward(const T* gate_up, int rows, int width, T* y) {
  for (int r = 0; r < rows; ++r) {
    const T* gate = Row(gate_up, r, 2 * width);
    const T* up = gate + width;
    T* out = Row(y, r, width);
    for (int j = 0; j < width; ++j) out[j] = gate[j] * Sigmoid(gate[j]) * up[j];
  }
}

template <typename T>
void SwigluBackwardInput(const T* gate_up, const T* dy, int stride, int rows, int width,
                         T* dgate_up) {
  for (int r = 0; r < rows; ++r) {
    const T* gate = Row(gate_up, r, 2 * width);
    const T* up = gate + width;
    const T* d = Row(dy, r, stride);
    T* dgate = Row(dgate_up, r, 2 * width);
    T* dup = dgate + width;
    for (int j = 0; j < width; ++j) {
      const T s = Sigmoid(gate[j]);
      const T dj = d[j];
      dup[j] = dj * gate[j] * s;
      dgate[j] = dj * up[j] * s * (T{1} + gate[j] * (T{1} - s));
    }
  }
}

namespace {

// Start of the rows and weights of one expert.
struct Expert {
  int rows;
  ptrdiff_t row, gate_up, down;
};

Expert ExpertAt(const ExpertsShape& shape, int e) {
  const ptrdiff_t matrix = static_cast<ptrdiff_t>(e) * shape.width * shape.inner;
  return {shape.first[e + 1] - shape.first[e], shape.first[e], 2 * matrix, matrix};
}

}  // namespace

template <typename T>
void ExpertsForward(const ExpertsShape& shape, const T* x, const T* gate_up, const T* down,
                    T* gate_up_out, T* hidden, T* y) {
  const int d = shape.width, f = shape.inner;
  for (int e = 0; e < shape.experts; ++e) {
    const Expert at = ExpertAt(shape, e);
    LinearForward(x + at.row * d, gate_up + at.gate_up, at.rows, d, 2 * f,
                  gate_up_out + at.row * 2 * f);
  }
  SwigluForward(gate_up_out, shape.first[shape.experts], f, hidden);
  for (int e = 0; e < shape.experts; ++e) {
    const Expert at = ExpertAt(shape, e);
    LinearForward(hidden + at.row * f, down + at.down, at.rows, f, d, y + at.row * d);
  }
}

template <typename T>
void ExpertsBackwardInput(const ExpertsShape& shape, const T* gate_up, const T* down,
                          const T* gate_up_out, const T* dy, T* dgate_up_out, T* dx) {
  const int d = shape.width, f = shape.inner, rows = shape.first[shape.experts];
  T* const dhidden = dgate_up_out + f;  // the second half of each row
  for (int e = 0; e < shape.experts; ++e) {
    const Expert at = ExpertAt(shape, e);
    Gemm<T>(Transpose::kNo, Transpose::kYes, at.rows, f, d, 1, dy + at.row * d, d, down + at.down,
            d, 0, dhidden + at.row * 2 * f, 2 * f);
  }
  SwigluBackwardInput(gate_up_out, dhidden, 2 * f, rows, f, dgate_up_out);
  for (int e = 0; e < shape.experts; ++e) {
    const Expert at = ExpertAt(shape, e);
    LinearBackwardInput(dgate_up_out + at.row * 2 * f, gate_up + at.gate_up, at.rows, d, 2 * f,
                        dx + at.row * d);
  }
}

template <typename T>
void ExpertsBackwardWeight(const ExpertsShape& shape, const T* x, const T* hidden,
                           const T* dgate_up_out, const T* dy, T* dgate_up, T* ddown) {
  const int d = shape.width, f = shape.inner;
  for (int e = 0; e < shape.experts; ++e) {
    const Expert at = ExpertAt(shape, e);
    LinearBackwardWeight(x + at.row * d, dgate_up_out + at.row * 2 * f, at.rows, d, 2 * f,
                         dgate_up + at.gate_up);
    LinearBackwardWeight(hidden + at.row * f, dy + at.row * d, at.rows, f, d, ddown + at.down);
  }
}

#define CF_INSTANTIATE(T)                                                                          \
  template void SwigluForward(const T*, int, int, T*);                                             \
  template void SwigluBackwardInput(const T*, const T*, int, int, int, T*);                        \
  template void ExpertsForward(const ExpertsShape&, const T*, const T*, const T*, T*, T*, T*);     \
  template void ExpertsBackwardInput(const ExpertsShape&, const T*, const T*, const T*, const T*,  \
                                     T*, T*);                                                      \
  template void ExpertsBackwardWeight(const ExpertsShape&, const T*, const T*, const T*, const T*, \
                                      T*, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
