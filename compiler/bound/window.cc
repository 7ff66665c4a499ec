// Two windows, for a rank with one stage of one route. Let L be the least lag between the end of a
// forward on this rank and the start of its backward, and n how many activations fit.
//
// Before its first backward the rank can only run forwards, at most n of them, and the first
// backward starts no earlier than head + its own forward + L. So it is idle for
//
//     idle1 = max(0, L - the n - 1 longest forwards).
//
// Between the end of the last forward and the start of that micro-batch's own backward lie at least
// L, in which only backwards and rests (weight gradients) run: those of what the rank holds. When
// it starts the last forward it holds a activations (with that one) and w stashes, a * activation +
// w * stash <= limit. If x rests are left for after the last backward, no more than a + w - x fit
// in, and a - 1 backwards:
//
//     idle2 = max(0, L - max over a and w of ((a - 1) b + max(0, a + w - x) rest)).
//
// All forwards and backwards and all but x rests end before the last backward does, and after that
// the x rests and the way upstream (tail) remain. If the last forward starts after the first
// backward, the windows do not meet and both idles count:
//
//     makespan >= head + idle1 + idle2 + forwards + backwards + rests - x + max(x rests, tail).
//
// Else all forwards come first, which takes n >= M, and the last backward starts no earlier than
// all forwards + L, nor than idle1 + everything before it:
//
//     makespan >= head + forwards + max(L, idle1 + backwards - one + rests - x) + one backward
//                 + max(x rests, tail).
//
// The bound is the smaller of the two for the best x. A backward in one go is B and its rest. With
// pairs shorter than their parts none of this holds, nor where chunks are recomputed: R fills
// windows, and such chunks take less memory.
//
// Ranks with any stages and routes: rank_window.cc.

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// The sums over a rank's only stage.
struct WindowRank {
  Time forwards = 0, backwards = 0, rests = 0;
  Time longest_forwards = 0;  ///< of n - 1
  int64_t count = 0;
};

WindowRank SumsOf(const RouteWork& route, size_t s, int64_t slots) {
  WindowRank rank;
  rank.count = static_cast<int64_t>(route.count);
  std::vector<Time> forwards;
  for (size_t k = 0; k < route.count; ++k) {
    const CellWork& chunk = route.At(s, k);
    rank.forwards += chunk.f;
    rank.backwards += chunk.b;
    rank.rests += chunk.weight;
    forwards.push_back(chunk.f);
  }
  const auto longest = static_cast<size_t>(std::min(slots, rank.count) - 1);
  std::nth_element(forwards.begin(), forwards.begin() + static_cast<ptrdiff_t>(longest),
                   forwards.end(), std::greater<>());
  for (size_t i = 0; i < longest; ++i) rank.longest_forwards += forwards[i];
  return rank;
}

/// The work of the second window for x = 0: the largest (a - 1) b + (a + w) rest.
Time LastWindow(const MemoryLimit& memory, const CellWork& most, int64_t count) {
  Time largest = 0;
  for (int64_t a = 1; a <= std::min(memory.slots(), count); ++a) {
    const int64_t left = *memory.amount() - a * memory.activation();
    const int64_t w = memory.stash() == 0 ? count - a : std::min(count - a, left / memory.stash());
    largest = std::max(largest, (a - 1) * most.b + (a + w) * most.weight);
  }
  return largest;
}

Bound BoundOfRank(const MemoryLimit& memory, const RouteWork& route, size_t s,
                  const ChunkTimes& times) {
  const WindowRank rank = SumsOf(route, s, memory.slots());
  const CellWork &least = route.least[s], &most = route.most[s];
  const Time idle1 = std::max<Time>(0, times.lag - rank.longest_forwards);
  const Time last_window = LastWindow(memory, most, rank.count);
  const Time backwards_only = (std::min(memory.slots(), rank.count) - 1) * most.b;
  Bound best = {.value = std::numeric_limits<Time>::max(),
                .kind = BoundKind::kTwoWindows,
                .rank = route.ranks[s],
                .head = times.head};
  const auto lower = [&best](Time work, Time idle, Time tail) {
    const Time value = best.head + work + idle + tail;
    if (value >= best.value) return;
    best.value = value;
    best.work = work;
    best.idle = idle;
    best.tail = tail;
  };
  const int64_t most_left =
      memory.stash() == 0 ? rank.count : std::min(rank.count, *memory.amount() / memory.stash());
  for (int64_t x = 0; x <= most_left; ++x) {
    const Time rests = std::max<Time>(0, rank.rests - x * most.weight);
    const Time tail = std::max(x * least.weight, times.tail);
    const Time window = std::max(last_window - x * least.weight, backwards_only);
    const Time idle2 = std::max<Time>(0, times.lag - window);
    const Time work = rank.forwards + rank.backwards + rests;
    lower(work, idle1 + idle2, tail);
    if (rank.count > memory.slots()) continue;
    const Time between = rank.backwards - most.b + rests;  // all but the last backward
    const Time wait = std::max(times.lag, idle1 + between) - between;
    lower(rank.forwards + between + least.b, wait, tail);
  }
  return best;
}

}  // namespace

void RaiseByWindows(const BoundInput& input, Bound* best) {
  if (input.pairs || input.routes.empty()) return;
  std::vector<int> stages(static_cast<size_t>(input.ranks), 0);
  for (const RouteWork& route : input.routes) {
    for (const int rank : route.ranks) ++stages[static_cast<size_t>(rank)];
  }
  for (const RouteWork& route : input.routes) {
    const MemoryLimit roomy(CostModel(), static_cast<int64_t>(route.count));
    const std::vector<ChunkTimes> times = LeastTimesOf(input, route);
    for (size_t s = 0; s < route.stages(); ++s) {
      if (stages[static_cast<size_t>(route.ranks[s])] > 1 || route.recomputed[s]) continue;
      const auto rank = static_cast<size_t>(route.ranks[s]);
      const MemoryLimit& memory = input.memory ? input.memory_of[rank] : roomy;
      KeepLarger(best, BoundOfRank(memory, route, s, times[s]));
    }
  }
}

}  // namespace contraflow
