#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "schedules/local/move_draw.h"
#include "schedules/local/noise_times.h"

namespace contraflow {

/// Draws moves that have a chance to shorten an order in some draw, the same for a seed everywhere.
class NoiseMoves : public MoveDraw {
 public:
  using MoveDraw::MoveDraw;

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph, const SampledTimes& times);

 private:
  std::vector<std::pair<int, int>> path_;  // a longest one of draw_, perhaps some moves ago
  size_t draw_ = 0;
  int left_ = 0;  // uses of the path
};

}  // namespace contraflow
