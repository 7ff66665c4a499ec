#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "schedules/order_graph.h"

namespace contraflow {

/// Draws moves that have a chance to shorten an order, the same for a seed everywhere.
class MoveProposals {
 public:
  /// For orders with words as long as the graph's.
  MoveProposals(const OrderGraph& graph, uint64_t seed);

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph);

  /// An even number below `count`.
  int Below(size_t count) { return static_cast<int>(random_() % count); }
  uint64_t Bits() { return random_(); }

 private:
  int Distance();
  std::pair<int, int> Pick(const OrderGraph& graph, bool critical);
  OrderGraph::Move AtBlock(const OrderGraph& graph);

  std::mt19937_64 random_;
  std::vector<std::pair<int, int>> places_;  // rank and place of all tokens
};

}  // namespace contraflow
