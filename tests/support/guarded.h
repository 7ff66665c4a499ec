#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/emulator/test_gpu.h"

namespace contraflow {

/// An array in device memory, `shift` elements after an aligned address, between poisoned guards
/// that must stay as they are.
template <typename T>
class Guarded {
 public:
  /// Poisoned.
  explicit Guarded(size_t size, size_t shift = 0)
      : size_(size), shift_(shift), all_(shift + size + kBehind) {}
  explicit Guarded(const std::vector<T>& values, size_t shift = 0) : Guarded(values.size(), shift) {
    std::vector<T> all = all_.Get();
    std::copy(values.begin(), values.end(), all.begin() + static_cast<ptrdiff_t>(shift));
    all_.Put(all);
  }

  T* data() { return all_.data() + shift_; }

  std::vector<T> Get() const {
    const std::vector<T> all = all_.Get();
    const auto begin = all.begin() + static_cast<ptrdiff_t>(shift_);
    const auto end = begin + static_cast<ptrdiff_t>(size_);
    CHECK(Poison({all.begin(), begin}));
    CHECK(Poison({end, all.end()}));
    return {begin, end};
  }

 private:
  static constexpr size_t kBehind = 40;
  static bool Poison(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    return std::all_of(bytes, bytes + values.size() * sizeof(T),
                       [](unsigned char byte) { return byte == 0xff; });
  }

  size_t size_, shift_;
  OnDevice<T> all_;
};

/// The largest error of `values`, which stand for `wanted`, in units of the last place of a bf16.
/// A value that is smaller than `least` is measured by the units of `least`. Infinite if a value is
/// missing or not finite.
inline double WorstUlps(const std::vector<gpu::Bf16>& values, const std::vector<double>& wanted,
                        double least = 1e-30) {
  if (values.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(gpu::ToFloat(values[i]));
    if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
    const double unit = std::ldexp(1, std::ilogb(std::max(std::abs(wanted[i]), least)) - 7);
    worst = std::max(worst, std::abs(value - wanted[i]) / unit);
  }
  return worst;
}

/// Half a unit, from rounding, and a little for the sums and functions before it.
inline constexpr double kRounding = 0.6;

/// The test's stream, but with so few SMs that blocks and threads must go on from row to row.
inline gpu::Stream NarrowStream() { return {TestStream().handle, 1}; }

}  // namespace contraflow
