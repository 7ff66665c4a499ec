#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace contraflow {

/// The last instructions that touched a range of bytes, one for each kind of lane: compute,
/// all-to-all, messages. -1: none there.
using LastUses = std::array<int32_t, 3>;

/// Hands out ranges of one growing allocation, in multiples of kSlotAlignment bytes.
class ArenaPacker {
 public:
  /// What it takes to use bytes again whose last uses these are: the number of events to add, or -1
  /// if they cannot be had.
  using Price = std::function<int(const LastUses& uses)>;

  /// Offset of `bytes` (> 0) that are free: of all places where every byte has a price the one that
  /// leaves least beside it, then the one with the fewest events, then the lowest. Grows if there
  /// is none. Appends the last uses of all that lay there to `before`.
  int64_t Take(int64_t bytes, const Price& price, std::vector<LastUses>* before);

  /// Gives back what Take handed out.
  void GiveBack(int64_t offset, int64_t bytes, const LastUses& uses);

 private:
  struct Gap {
    int64_t end;
    LastUses uses;
  };

  /// Makes one gap of two neighbours, which then waits for what either waited for; false if that
  /// cannot be told.
  static bool Join(std::pair<const int64_t, Gap>* gap, const std::pair<const int64_t, Gap>& next);
  void Cut(int64_t begin, int64_t end, std::vector<LastUses>* before);

  std::map<int64_t, Gap> gaps_;  // by offset; neighbours are joined if their last uses are the same
  int64_t size_ = 0;
};

}  // namespace contraflow
