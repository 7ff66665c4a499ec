#include "schedules/move_proposal.h"

#include <algorithm>

namespace contraflow {
namespace {

/// Farthest that a token goes in one move.
constexpr int kFar = 20, kNear = 3;
/// Tries to find a token on a longest path.
constexpr int kTries = 8;
/// Of ten proposals, those at the start of a block of a longest path.
constexpr int kAtBlocks = 3;

/// From one place towards another. With `all_the_way`: all of it or nothing.
OrderGraph::Move From(const OrderGraph& graph, int rank, int from, int to, bool all_the_way) {
  const int last = graph.length(rank) - 1;
  const OrderGraph::Move move =
      graph.Shorten({rank, std::clamp(from, 0, last), std::clamp(to, 0, last)});
  if (all_the_way && move.to != to) return {rank, to, to};
  return move;
}

}  // namespace

MoveProposals::MoveProposals(const OrderGraph& graph, uint64_t seed) : random_(seed) {
  for (int r = 0; r < graph.ranks(); ++r) {
    for (int place = 0; place < graph.length(r); ++place) places_.emplace_back(r, place);
  }
}

OrderGraph::Move MoveProposals::Next(const OrderGraph& graph) {
  if (Below(10) < kAtBlocks) return AtBlock(graph);
  const auto [rank, from] = Pick(graph, random_() % 2 == 0);
  const int distance = Distance();
  return From(graph, rank, from, Below(2) == 0 ? from + distance : from - distance, false);
}

int MoveProposals::Distance() { return 1 + Below(Below(3) == 0 ? kFar : kNear); }

/// Any token; `critical`: one on a longest path, if a few tries find one.
std::pair<int, int> MoveProposals::Pick(const OrderGraph& graph, bool critical) {
  auto place = places_[static_cast<size_t>(Below(places_.size()))];
  if (!critical) return place;
  for (int i = 0; i < kTries; ++i) {
    if (graph.Through(place.first, place.second) >= graph.makespan()) return place;
    place = places_[static_cast<size_t>(Below(places_.size()))];
  }
  return place;
}

/// A longest path runs through blocks of tokens without gaps, from each to the next by a message.
/// What stays inside its block changes nothing. So: what follows fills the gap before a block, or
/// the block's message is sent earlier.
OrderGraph::Move MoveProposals::AtBlock(const OrderGraph& graph) {
  const auto [rank, place] = Pick(graph, true);
  const int start = graph.BlockStart(rank, place);
  const int distance = Distance();
  const uint64_t kind = random_() % 4;
  if (kind < 2) {
    const auto [sender, sent] = graph.Sender(rank, start);
    if (sender >= 0 && kind == 0) return From(graph, sender, sent, sent - distance, false);
    if (sender >= 0) return From(graph, sender, sent - distance, sent, true);
  }
  if (kind == 2) return From(graph, rank, start, start + distance, false);
  return From(graph, rank, start + distance, start, true);
}

}  // namespace contraflow
