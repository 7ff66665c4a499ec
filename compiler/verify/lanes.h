#pragma once

// Which instructions of a rank are over before which others begin, whatever the lanes do: shared by
// the checks of events and of buffers, and by nobody else.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow::check {

/// Vector clocks over the lanes of one rank at a time: compute, all-to-all, reduce, and one for
/// each edge to or from a peer.
class Clocks {
 public:
  explicit Clocks(const Plan& plan);

  /// Turns to this rank. Each instruction counts on the lane its operation demands; entries of
  /// `after` that are not of earlier instructions count for nothing.
  void Turn(int rank);

  /// Whether, by the order of the lanes and by `after` alone, `first` has ended when `second`
  /// begins. Instructions of the rank turned to. Never true where it is not so. It may be false
  /// where it is so on a rank that sends to and receives from more than five hundred others: there,
  /// what stands on the lanes of the last ones is known to be over only to what waits for it, and
  /// to what follows the first that does.
  bool Before(int32_t first, int32_t second) const {
    const auto column = static_cast<size_t>(lanes_[static_cast<size_t>(first)]);
    if (first >= second) return false;
    if (lanes_[static_cast<size_t>(first)] == lanes_[static_cast<size_t>(second)]) return true;
    if (column >= columns_) return FollowsWaiter(first, second);
    return clocks_[static_cast<size_t>(second) * columns_ + column] >= first;
  }

  /// Number of the lane an instruction is on: 0 compute, 1 all-to-all, 2 reduce, then the edges.
  int32_t LaneAt(int32_t index) const { return lanes_[static_cast<size_t>(index)]; }

 private:
  struct Edge {
    int rank = -1;  // the rank that used it last
    int32_t lane = 0;
  };

  int32_t NumberOf(const Instruction& i, int rank);
  bool WaitsDirectly(int32_t first, int32_t second) const;
  bool FollowsWaiter(int32_t first, int32_t second) const;
  void FindWaiters();
  void Join(int32_t index, int32_t on);

  const Plan& plan_;
  std::vector<Edge> edges_;  // by peer, to and from
  const Program* program_ = nullptr;
  int32_t lane_count_ = 0;
  size_t columns_ = 0;           // lanes that have a clock
  std::vector<int32_t> lanes_;   // by instruction
  std::vector<int32_t> clocks_;  // by instruction, then lane: the last one there that is over
  // By instruction on a lane without a clock: the first to wait for it or for one behind it there.
  std::vector<int32_t> waiters_;
};

}  // namespace contraflow::check
