#pragma once

#include <utility>

#include "schedules/local/move_draw.h"

namespace contraflow {

/// Draws moves that have a chance to shorten an order, the same for a seed everywhere.
class MoveProposals : public MoveDraw {
 public:
  using MoveDraw::MoveDraw;

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph);

 private:
  std::pair<int, int> Pick(const OrderGraph& graph, bool critical);
  OrderGraph::Move AtLongestPath(const OrderGraph& graph);
};

}  // namespace contraflow
