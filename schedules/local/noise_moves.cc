#include "schedules/local/noise_moves.h"

namespace contraflow {
namespace {

/// Proposals from one longest path. It changes with every move that is kept, but not much.
constexpr int kUses = 8;
/// Of ten proposals, those of any action at all, and those of an action on the path.
constexpr int kAnywhere = 2, kOnPath = 3;

}  // namespace

OrderGraph::Move NoiseMoves::Next(const OrderGraph& graph, const SampledTimes& times) {
  const int choice = Below(10);
  const int distance = Distance();
  const bool later = Below(2) == 0;
  if (choice < kAnywhere) {
    const auto [rank, place] = Any();
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
  const int start = times.BlockStart(draw_, rank, place);
  return AtBlock(graph, rank, start, distance,
                 [&, r = rank] { return times.Sender(draw_, r, start); });
}

}  // namespace contraflow
