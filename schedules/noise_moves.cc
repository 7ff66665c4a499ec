#include "schedules/noise_moves.h"

#include <algorithm>

namespace contraflow {
namespace {

/// Farthest that a token goes in one move, most often and at all.
constexpr int kNear = 3, kFar = 20;
/// Proposals from one longest path. It changes with every move that is kept, but not much.
constexpr int kUses = 8;
/// Of ten proposals, those of any token at all, and those of a token on the path.
constexpr int kAnywhere = 2, kOnPath = 3;

/// From one place towards another. With `all_the_way`: all of it or nothing.
OrderGraph::Move From(const OrderGraph& graph, int rank, int from, int to, bool all_the_way) {
  const int last = graph.length(rank) - 1;
  const OrderGraph::Move move =
      graph.Shorten({rank, std::clamp(from, 0, last), std::clamp(to, 0, last)});
  if (all_the_way && move.to != to) return {rank, to, to};
  return move;
}

}  // namespace

NoiseMoves::NoiseMoves(const OrderGraph& graph, uint64_t seed) : random_(seed) {
  for (int r = 0; r < graph.ranks(); ++r) {
    for (int place = 0; place < graph.length(r); ++place) places_.emplace_back(r, place);
  }
}

int NoiseMoves::Distance() { return 1 + Below(Below(3) == 0 ? kFar : kNear); }

OrderGraph::Move NoiseMoves::Next(const OrderGraph& graph, const NoiseTimes& times) {
  const int choice = Below(10);
  const int distance = Distance();
  const bool later = Below(2) == 0;
  if (choice < kAnywhere) {
    const auto [rank, place] = places_[static_cast<size_t>(Below(places_.size()))];
    return From(graph, rank, place, later ? place + distance : place - distance, false);
  }
  if (left_-- <= 0) {
    draw_ = static_cast<size_t>(Below(times.draws()));
    times.Path(draw_, &path_);
    left_ = kUses;
  }
  const auto [rank, place] = path_[static_cast<size_t>(Below(path_.size()))];
  if (choice < kAnywhere + kOnPath) {
    return From(graph, rank, place, later ? place + distance : place - distance, false);
  }
  // A longest path runs through blocks of tokens without gaps, from each to the next by a message.
  // What stays inside its block changes nothing. So: the block's message is sent earlier, or what
  // follows fills the gap before it.
  const int start = times.BlockStart(draw_, rank, place);
  const int kind = Below(4);
  if (kind < 2) {
    const auto [sender, sent] = times.Sender(draw_, rank, start);
    if (sender >= 0 && kind == 0) return From(graph, sender, sent, sent - distance, false);
    if (sender >= 0) return From(graph, sender, sent - distance, sent, true);
  }
  if (kind == 2) return From(graph, rank, start, start + distance, false);
  return From(graph, rank, start + distance, start, true);
}

}  // namespace contraflow
