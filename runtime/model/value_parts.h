#pragma once

#include <cstddef>
#include <cstdint>

#include "compiler/plan/value.h"

namespace contraflow {

/// Hands out the parts of a value, one behind the other, each at a multiple of kSlotAlignment from
/// its base; with a null base it only counts.
class ValueParts {
 public:
  explicit ValueParts(std::byte* base) : base_(base) {}

  /// The next rows x columns elements.
  template <typename T>
  void Take(int rows, int columns, T** part) {
    if (base_ != nullptr) *part = reinterpret_cast<T*>(base_ + bytes_);
    const int64_t bytes = int64_t{rows} * columns * static_cast<int64_t>(sizeof(T));
    bytes_ += (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }
  /// Of all parts so far.
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

}  // namespace contraflow
