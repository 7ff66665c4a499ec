#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace contraflow {

/// The positions that a sweep has still to visit. They are taken in ascending or in descending
/// order, and what is taken may mark others as long as they lie ahead. One bit each: a position
/// that is marked twice is visited once.
class MarkedPositions {
 public:
  void Reset(size_t positions) {
    bits_.assign(positions / 64 + 1, 0);
    count_ = 0;
  }

  bool empty() const { return count_ == 0; }

  /// Start of the next sweep: nothing is marked before that.
  void StartAt(int32_t position) { block_ = static_cast<size_t>(position) / 64; }

  void Mark(int32_t position) {
    uint64_t& block = bits_[static_cast<size_t>(position) / 64];
    const uint64_t bit = uint64_t{1} << (static_cast<size_t>(position) % 64);
    if ((block & bit) != 0) return;
    block |= bit;
    ++count_;
  }

  /// The least one, in a sweep upwards; one must be left.
  size_t TakeFirst() {
    while (bits_[block_] == 0) ++block_;
    return Take(static_cast<size_t>(std::countr_zero(bits_[block_])));
  }
  /// The greatest one, in a sweep downwards; one must be left.
  size_t TakeLast() {
    while (bits_[block_] == 0) --block_;
    return Take(63 - static_cast<size_t>(std::countl_zero(bits_[block_])));
  }

 private:
  size_t Take(size_t bit) {
    bits_[block_] &= ~(uint64_t{1} << bit);
    --count_;
    return block_ * 64 + bit;
  }

  std::vector<uint64_t> bits_;
  int64_t count_ = 0;
  size_t block_ = 0;  // where the sweep is
};

}  // namespace contraflow
