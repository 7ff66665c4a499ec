// Windows of a rank with any stages and routes. Before its first backward, which starts no earlier
// than `first`, a rank can only run forwards, no more than fit in memory. After its last forward it
// can only run backwards and rests of what it holds, and no less than `last` passes, the shortest
// lag with its backward and the way upstream behind it. What of the two windows this work does not
// fill is idle. The windows do not meet unless all forwards come before all backwards, which takes
// memory for all of them; then only the larger idle counts.
//
// Pairs shorter than their parts have one forward and one backward each, so as many backwards of a
// rank are in no pair as forwards: let that be u of them. The savings of u backwards are never
// made. In the windows there are no pairs, so no more than u forwards and u backwards:
//
//     makespan >= head + work + u * least saving + max(0, first - head - u longest forwards)
//                                                + max(0, last - u longest backwards),
//
// with no more forwards and backwards than the rank can hold. The bound is the least of this for
// any u >= 1: with few the windows are idle, with many the savings are not made. Without savings
// it is that for all chunks. Ranks that recompute are left out: R fills windows as well.

#include <algorithm>
#include <optional>

#include "compiler/bound/opening.h"
#include "compiler/bound/work.h"

namespace contraflow {
namespace {

struct Rank {
  Time head = kNever, first = kNever, last = kNever, least_saving = kNever;
  Time longest_f = 0, longest_b = 0, longest_rest = 0;
  Time work = 0;
  int64_t count = 0;
  std::vector<Opening> openings;  ///< of its stages
};

/// `count` micro-batches that are like the k-th of the route.
void Add(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
         std::vector<Rank>* ranks) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  for (size_t s = 0; s < route.stages(); ++s) {
    const CellWork& chunk = route.At(s, k);
    const auto& [head, lag, tail] = times[s];
    Rank& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    const Time after = std::max(tail, input.RestOnPath(route, s, chunk));
    rank.head = std::min(rank.head, head);
    rank.first = std::min(rank.first, head + chunk.f + lag);
    rank.last = std::min(rank.last, lag + chunk.b + after);
    rank.least_saving = std::min(rank.least_saving, chunk.saving);
    rank.longest_f = std::max(rank.longest_f, chunk.f);
    rank.longest_b = std::max(rank.longest_b, chunk.b);
    rank.longest_rest = std::max(rank.longest_rest, chunk.rest);
    rank.work += static_cast<Time>(count) * chunk.work();
    rank.count += static_cast<int64_t>(count);
  }
}

/// The most backward work that a rank can hold: the largest a b + (a + w) rest for a activations
/// and w stashes.
Time MostHeld(const Rank& rank, const std::optional<BoundMemory>& memory) {
  if (!memory) return rank.count * (rank.longest_b + rank.longest_rest);
  Time most = 0;
  for (int64_t a = 0; a <= std::min(memory->slots(), rank.count); ++a) {
    const int64_t left = memory->limit - a * memory->activation;
    const int64_t others = rank.count - a;
    const int64_t w = memory->stash == 0 ? others : std::min(others, left / memory->stash);
    most = std::max(most, a * rank.longest_b + (a + w) * rank.longest_rest);
  }
  return most;
}

Bound BoundOfRank(const Rank& rank, const BoundInput& input) {
  const BoundKind kind = rank.least_saving > 0 ? BoundKind::kPairs : BoundKind::kTwoWindows;
  Bound best = {.value = kNever, .kind = kind, .head = rank.head};
  const int64_t slots = input.memory ? std::min(input.memory->slots(), rank.count) : rank.count;
  const Time held = MostHeld(rank, input.memory);
  // A larger u without savings only fills the windows.
  for (int64_t u = rank.least_saving > 0 ? 1 : rank.count; u <= rank.count; ++u) {
    const Time forwards = std::min(u, slots) * rank.longest_f;
    const Time backwards = std::min(u * (rank.longest_b + rank.longest_rest), held);
    const Time first = std::max(rank.first - rank.head - forwards,
                                IdleOfOpening(rank.openings, std::min(u, slots), rank.longest_f));
    const Time last = std::max<Time>(0, rank.last - backwards);
    const bool may_meet = u == rank.count && slots == rank.count;
    const Time idle = may_meet ? std::max(first, last) : first + last;
    const Time work = rank.work + u * rank.least_saving;
    if (rank.head + work + idle >= best.value) continue;
    best.value = rank.head + work + idle;
    best.work = work;
    best.idle = idle;
  }
  return best;
}

}  // namespace

void RaiseByRankWindows(const BoundInput& input, Bound* best) {
  if (!input.pairs && !input.memory) return;
  std::vector<Rank> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) Add(input, route, k, route.count / kinds, &ranks);
  }
  for (const RouteWork& route : input.routes) {
    const std::vector<ChunkTimes> times = LeastTimesOf(input, route);
    for (size_t s = 0; s < route.stages(); ++s) {
      Rank& rank = ranks[static_cast<size_t>(route.ranks[s])];
      rank.openings.push_back({times[s].head - rank.head, times[s].lag});
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    const Rank& rank = ranks[static_cast<size_t>(r)];
    if (rank.count == 0 || input.recomputes[static_cast<size_t>(r)]) continue;
    Bound bound = BoundOfRank(rank, input);
    bound.rank = r;
    Raise(best, bound);
  }
}

}  // namespace contraflow
