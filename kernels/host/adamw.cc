#include "kernels/host/adamw.h"

#include <cmath>
#include <iterator>

namespace contraflow {

template <typename T>
void AdamWStep(const AdamW& settings, int step, size_t n, const T* gradient, T* m, T* v,
               T* parameter) {
  // The bias corrections are folded into two factors, in double, once a step.
  const double correction1 = 1 - std::pow(settings.beta1, step);
  const double correction2 = 1 - std::pow(settings.beta2, step);
  const T rate = static_cast<T>(settings.learning_rate / correction1);
  const T spread = static_cast<T>(1 / std::sqrt(correction2));
  const T keep = static_cast<T>(1 - settings.learning_rate * settings.weight_decay);
  const T beta1 = static_cast<T>(settings.beta1), beta2 = static_cast<T>(settings.beta2);
  const T epsilon = static_cast<T>(settings.epsilon);
  for (size_t i = 0; i < n; ++i) {
    const T g = gradient[i];
    m[i] = beta1 * m[i] + (T{1} - beta1) * g;
    v[i] = beta2 * v[i] + (T{1} - beta2) * g * g;
    parameter[i] = parameter[i] * keep - rate * m[i] / (std::sqrt(v[i]) * spread + epsilon);
  }
}

template <typename T>
double SumOfSquares(size_t n, const T* values) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + std::size(sums) <= n; i += std::size(sums)) {
    for (size_t k = 0; k < std::size(sums); ++k) {
      sums[k] += static_cast<double>(values[i + k]) * static_cast<double>(values[i + k]);
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

#define CF_INSTANTIATE(T)                                                   \
  template void AdamWStep(const AdamW&, int, size_t, const T*, T*, T*, T*); \
  template double SumOfSquares(size_t, const T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
