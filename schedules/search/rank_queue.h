#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// When each rank is to be looked at next, and which is first: a tournament tree. Of ranks at the
/// same time the lowest is first.
class RankQueue {
 public:
  static constexpr Time kNever = std::numeric_limits<Time>::max();

  /// All ranks at time 0.
  void Reset(size_t ranks) {
    leaves_ = 1;
    while (leaves_ < ranks) leaves_ *= 2;
    node_.assign(2 * leaves_, {kNever, 0});
    for (size_t r = 0; r < leaves_; ++r) {
      node_[leaves_ + r] = {r < ranks ? 0 : kNever, static_cast<int>(r)};
    }
    for (size_t n = leaves_; n-- > 1;) node_[n] = Earlier(node_[2 * n], node_[2 * n + 1]);
  }

  void Set(int rank, Time time) {
    size_t n = leaves_ + static_cast<size_t>(rank);
    node_[n].time = time;
    while (n > 1) {
      n /= 2;
      const Entry& first = Earlier(node_[2 * n], node_[2 * n + 1]);
      // Above a node that stays as it was, everything does.
      if (first.rank == node_[n].rank && first.time == node_[n].time) return;
      node_[n] = first;
    }
  }

  Time time(int rank) const { return node_[leaves_ + static_cast<size_t>(rank)].time; }
  int first() const { return node_[1].rank; }
  Time first_time() const { return node_[1].time; }

 private:
  struct Entry {
    Time time;
    int rank;
  };
  static const Entry& Earlier(const Entry& a, const Entry& b) { return b.time < a.time ? b : a; }

  size_t leaves_ = 1;
  std::vector<Entry> node_;
};

}  // namespace contraflow
