#include "schedules/local/move_draw.h"

#include <algorithm>

namespace contraflow {
namespace {

/// Farthest that an action goes in one move, most often and at all.
constexpr int kNear = 3, kFar = 20;

}  // namespace

MoveDraw::MoveDraw(const OrderGraph& graph, uint64_t seed) : random_(seed) {
  for (int r = 0; r < graph.ranks(); ++r) {
    for (int place = 0; place < graph.length(r); ++place) places_.emplace_back(r, place);
  }
}

int MoveDraw::Distance() { return 1 + Below(Below(3) == 0 ? kFar : kNear); }

OrderGraph::Move MoveDraw::From(const OrderGraph& graph, int rank, int from, int to,
                                bool all_the_way) {
  const int last = graph.length(rank) - 1;
  const OrderGraph::Move move =
      graph.Shorten({rank, std::clamp(from, 0, last), std::clamp(to, 0, last)});
  if (all_the_way && move.to != to) return {rank, to, to};
  return move;
}

}  // namespace contraflow
