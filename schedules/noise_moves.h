#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "schedules/noise_times.h"

namespace contraflow {

/// Draws moves that have a chance to shorten an order in some draw, the same for a seed everywhere.
class NoiseMoves {
 public:
  NoiseMoves(const OrderGraph& graph, uint64_t seed);

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph, const NoiseTimes& times);

  uint64_t Bits() { return random_(); }

 private:
  int Below(size_t count) { return static_cast<int>(random_() % count); }
  int Distance();

  std::mt19937_64 random_;
  std::vector<std::pair<int, int>> places_;  // rank and place of all tokens
  std::vector<std::pair<int, int>> path_;    // a longest one of draw_, perhaps some moves ago
  size_t draw_ = 0;
  int left_ = 0;  // uses of the path
};

}  // namespace contraflow
