#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "schedules/local/order_graph.h"

namespace contraflow {

/// Base of the move generators; deterministic for a seed.
class MoveDraw {
 public:
  /// For orders with lists as long as the graph's.
  MoveDraw(const OrderGraph& graph, uint64_t seed) : random_(seed) {
    for (int r = 0; r < graph.ranks(); ++r) {
      for (int place = 0; place < graph.length(r); ++place) places_.emplace_back(r, place);
    }
  }

  /// Returns a uniform number below `count`.
  int Below(size_t count) { return static_cast<int>(random_() % count); }
  uint64_t Bits() { return random_(); }

 protected:
  /// Returns a distance to move by; mostly a short one.
  int Distance() { return 1 + Below(Below(3) == 0 ? kFar : kNear); }
  /// Rank and place of any action.
  std::pair<int, int> Any() { return places_[static_cast<size_t>(Below(places_.size()))]; }

  /// From one place towards another. With `all_the_way`: all of it or nothing.
  static OrderGraph::Move From(const OrderGraph& graph, int rank, int from, int to,
                               bool all_the_way) {
    const int last = graph.length(rank) - 1;
    const OrderGraph::Move move =
        graph.Shorten({rank, std::clamp(from, 0, last), std::clamp(to, 0, last)});
    if (all_the_way && move.to != to) return {rank, to, to};
    return move;
  }

  /// A longest path runs through blocks of actions without gaps, from each to the next by a
  /// message. A move inside its block changes nothing. So, for a block that begins at `start`: its
  /// message, from the rank and place that `sender` gives (a rank below 0: none), is sent earlier,
  /// or what follows fills the gap before it.
  template <typename Sender>
  OrderGraph::Move AtBlock(const OrderGraph& graph, int rank, int start, int distance,
                           const Sender& sender) {
    const int kind = Below(4);
    if (kind < 2) {
      const auto [from, sent] = sender();
      if (from >= 0 && kind == 0) return From(graph, from, sent, sent - distance, false);
      if (from >= 0) return From(graph, from, sent - distance, sent, true);
    }
    if (kind == 2) return From(graph, rank, start, start + distance, false);
    return From(graph, rank, start + distance, start, true);
  }

 private:
  /// Farthest that an action goes in one move, most often and at all.
  static constexpr int kNear = 3, kFar = 20;

  std::mt19937_64 random_;
  std::vector<std::pair<int, int>> places_;  // rank and place of all actions
};

}  // namespace contraflow
