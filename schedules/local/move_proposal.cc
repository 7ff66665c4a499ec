#include "schedules/local/move_proposal.h"

namespace contraflow {
namespace {

/// Tries to find an action on a longest path.
constexpr int kTries = 8;
/// Of ten proposals, those at the start of a block of a longest path.
constexpr int kAtBlocks = 3;

}  // namespace

OrderGraph::Move MoveProposals::Next(const OrderGraph& graph) {
  if (Below(10) < kAtBlocks) return AtLongestPath(graph);
  const auto [rank, from] = Pick(graph, Below(2) == 0);
  const int distance = Distance();
  return From(graph, rank, from, Below(2) == 0 ? from + distance : from - distance, false);
}

/// Any action; `critical`: one on a longest path, if a few tries find one.
std::pair<int, int> MoveProposals::Pick(const OrderGraph& graph, bool critical) {
  auto place = Any();
  if (!critical) return place;
  for (int i = 0; i < kTries; ++i) {
    if (graph.Through(place.first, place.second) >= graph.makespan()) return place;
    place = Any();
  }
  return place;
}

OrderGraph::Move MoveProposals::AtLongestPath(const OrderGraph& graph) {
  const auto [rank, place] = Pick(graph, true);
  const int start = graph.BlockStart(rank, place);
  return AtBlock(graph, rank, start, Distance(), [&, r = rank] { return graph.Sender(r, start); });
}

}  // namespace contraflow
