#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/host/buffer.h"
#include "kernels/host/random.h"

namespace contraflow {

using Doubles = std::vector<double>;

/// n values in [-1, 1), the same for every scalar type.
template <typename T>
Buffer<T> RandomValues(size_t n, uint64_t key) {
  Buffer<T> x(n);
  FillUniform(key, 1, n, x.data());
  return x;
}

/// An output buffer full of NaN: a kernel that reads it, or leaves some of it unwritten, shows.
template <typename T>
Buffer<T> Poisoned(size_t n) {
  return Buffer<T>(n, std::numeric_limits<T>::quiet_NaN());
}

template <typename T>
Doubles ToDoubles(const Buffer<T>& x) {
  return Doubles(x.begin(), x.end());
}

/// Compares against a reference, relative to its largest value. `slack` is in units of the scalar's
/// usual error: 1e-6 for float, 1e-9 for double.
template <typename T>
void CheckClose(const Buffer<T>& got, const Doubles& want, double slack = 10) {
  REQUIRE(got.size() == want.size());
  double largest = 1;
  for (const double w : want) largest = std::max(largest, std::abs(w));
  const double bound = (sizeof(T) == 4 ? 1e-6 : 1e-9) * slack * largest;
  size_t wrong = 0;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= bound)) ++wrong;  // NaN counts.
    worst = std::max(worst, error);
  }
  INFO("largest error " << worst << ", allowed " << bound);
  CHECK(wrong == 0);
}

/// Gradient of sum(weight * f(x)) by central differences, f a naive reference in double.
inline Doubles NumericGradient(const std::function<Doubles(const Doubles&)>& f, Doubles x,
                               const Doubles& weight) {
  const double h = 1e-5;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const Doubles up = f(x);
    x[i] = at - h;
    const Doubles down = f(x);
    x[i] = at;
    REQUIRE(up.size() == weight.size());
    for (size_t j = 0; j < up.size(); ++j) gradient[i] += weight[j] * (up[j] - down[j]) / (2 * h);
  }
  return gradient;
}

}  // namespace contraflow
