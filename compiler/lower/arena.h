#pragma once

// The buffer pass packs values with these: which bytes are free, and which uses are over by then.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// The last instructions that touched a range of bytes, one for each kind of lane: compute,
/// all-to-all, messages, copies to the host. -1: none there.
using LastUses = std::array<int32_t, 4>;

/// Hands out ranges of one growing allocation, in multiples of kSlotAlignment bytes.
class ArenaPacker {
 public:
  /// Price of using bytes again whose last uses these are: the number of events to add, or -1 if
  /// they cannot be had.
  using Price = std::function<int(const LastUses& uses)>;

  /// Offset of `bytes` (> 0) that are free: of all places where every byte has a price the one that
  /// leaves the smallest gap, then the one with the fewest events, then the lowest. Grows if there
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

/// The uses that are over when instructions of one rank begin, however far its lanes run ahead of
/// each other: vector clocks over the compute, all-to-all and reduce lanes and one lane for each
/// edge, those to and from the host among them. It is built while the program is walked, so events
/// can still be added to the instruction at hand.
class LaneOrder {
 public:
  explicit LaneOrder(const Program& program);

  /// Goes on to instruction `index` (from 0, one by one), which waits for its `after` and its lane.
  void Begin(int32_t index);

  /// Whether an earlier instruction is over when the one at hand begins.
  bool Over(int32_t earlier) const {
    return clock_[static_cast<size_t>(lanes_[static_cast<size_t>(earlier)])] >= earlier;
  }

  /// Whether an earlier instruction is over when one up to the one at hand begins.
  bool Over(int32_t earlier, int32_t later) const {
    const auto lane = static_cast<size_t>(lanes_[static_cast<size_t>(earlier)]);
    return clocks_[static_cast<size_t>(later) * clock_.size() + lane] >= earlier;
  }

  /// How many lanes there are, and which an instruction is on: 0 compute, 1 all-to-all.
  size_t lanes() const { return clock_.size(); }
  int32_t LaneAt(int32_t index) const { return lanes_[static_cast<size_t>(index)]; }

  /// The one at hand now waits for this one too.
  void Wait(int32_t earlier);

  /// To be called when all waits of the instruction at hand are known.
  void End();

 private:
  void Join(int32_t earlier);

  const Program& program_;
  std::vector<int32_t> lanes_;   // of each instruction
  std::vector<int32_t> latest_;  // instruction of each lane
  std::vector<int32_t> clocks_;  // by instruction, then lane: the last one there that is over
  std::vector<int32_t> clock_;   // of the instruction at hand
  size_t at_ = 0;
};

}  // namespace contraflow
