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
//
// The end of a rank. The second window has a part into which no backward fits. When the last B of
// the rank has ended its micro-batch still has the way upstream before it, no less than `end`, and
// all that the rank can run until then are rests of what it holds, of u backwards at most, for the
// backward of a pair leaves no rest behind:
//
//     idle >= max(0, end - u longest rests).
//
// The last B comes after the last forward, whose own backward is still to come, so this lies within
// the second window and the larger of the two counts. With many backwards the window is full but
// for this part: in DualPipe's placement of P ranks the way upstream from the middle takes (P / 2 -
// 1) b and a rest.
//
// The opening of a rank: what it does before its first backward, forwards alone, and no more of
// them than fit in memory, n. Let the first backward be of stage s, and let j forwards run before
// the forward x of the same chunk. A forward is not interrupted, so x starts
//
//     no earlier than the head of s, and then the rank was idle for wait - j longest or more,
//
// where wait is what the head of s is later than that of the rank. From the end of x to the start
// of its backward the lag of s passes, in which n - 1 - j forwards run at most:
//
//     idle >= max(0, wait - j longest) + max(0, lag - (n - 1 - j) longest).
//
// Which stage and which j the bound cannot know: it is the least for any. Where x has to wait a
// little more than j forwards take, the rank is idle in front of x; one forward more before x is
// one less behind it, which memory lets it run only once. That is so on the middle ranks of a
// bidirectional placement with n = P + 1: wait = f + hop, for x the second forward a hop of idle
// time, for x the third the last forward missing from the lag. One window with n forwards in it,
// however they lie, does not see it.
//
// Without the max the sum does not depend on j; the first term falls with j until it is 0, the
// second is 0 until it rises. So the least is at an end, or next to one of the two corners.

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

struct RankOpening {
  Time head = kNever, first = kNever, last = kNever, end = kNever, least_saving = kNever;
  Time longest_f = 0, longest_b = 0, longest_rest = 0;
  Time work = 0;
  int64_t count = 0;
  std::vector<FirstBackwardIdle> openings;  ///< of its stages
};

/// `count` micro-batches that are like the k-th of the route.
void AddRoute(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
              std::vector<RankOpening>* ranks) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  for (size_t s = 0; s < route.stages(); ++s) {
    const CellWork& chunk = route.At(s, k);
    const auto& [head, lag, tail] = times[s];
    RankOpening& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    const Time after = std::max(tail, input.RestOnPath(route, s, chunk));
    rank.head = std::min(rank.head, head);
    rank.first = std::min(rank.first, head + chunk.f + lag);
    rank.last = std::min(rank.last, lag + chunk.b + after);
    rank.end = std::min(rank.end, after);
    rank.least_saving = std::min(rank.least_saving, chunk.saving);
    rank.longest_f = std::max(rank.longest_f, chunk.f);
    rank.longest_b = std::max(rank.longest_b, chunk.b);
    rank.longest_rest = std::max(rank.longest_rest, chunk.weight);
    rank.work += static_cast<Time>(count) * chunk.work();
    rank.count += static_cast<int64_t>(count);
  }
}

Bound BoundOfRank(const RankOpening& rank, const MemoryLimit* memory) {
  const BoundKind kind = rank.least_saving > 0 ? BoundKind::kPairs : BoundKind::kTwoWindows;
  Bound best = {.value = kNever, .kind = kind, .head = rank.head};
  const int64_t slots = memory ? std::min(memory->slots(), rank.count) : rank.count;
  const Time held = memory ? MostHeld(*memory, rank.count, rank.longest_b, rank.longest_rest)
                           : rank.count * (rank.longest_b + rank.longest_rest);
  const int64_t stashes = memory && memory->stash() > 0
                              ? std::min(*memory->amount() / memory->stash(), rank.count)
                              : rank.count;
  // A larger u without savings only fills the windows.
  for (int64_t u = rank.least_saving > 0 ? 1 : rank.count; u <= rank.count; ++u) {
    const Time forwards = std::min(u, slots) * rank.longest_f;
    const Time backwards = std::min(u * (rank.longest_b + rank.longest_rest), held);
    const Time first =
        std::max(rank.first - rank.head - forwards,
                 IdleBeforeFirstBackward(rank.openings, std::min(u, slots), rank.longest_f));
    const Time rests = std::min(u, stashes) * rank.longest_rest;
    const Time last = std::max<Time>({0, rank.last - backwards, rank.end - rests});
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

Time IdleBeforeFirstBackward(const std::vector<FirstBackwardIdle>& openings, int64_t forwards,
                             Time longest) {
  Time least = std::numeric_limits<Time>::max();
  const int64_t others = forwards - 1;
  for (const auto& [wait, lag] : openings) {
    const auto idle = [&, wait = wait, lag = lag](int64_t before) {
      return std::max<Time>(0, wait - before * longest) +
             std::max<Time>(0, lag - (others - before) * longest);
    };
    least = std::min({least, idle(0), idle(others)});
    if (longest == 0) continue;
    for (const int64_t corner : {wait / longest, others - lag / longest}) {
      for (int64_t before = corner - 1; before <= corner + 1; ++before) {
        if (before > 0 && before < others) least = std::min(least, idle(before));
      }
    }
  }
  return least;
}

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

void RaiseByRankWindows(const BoundInput& input, Bound* best) {
  if (!input.pairs && !input.memory) return;
  std::vector<RankOpening> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) AddRoute(input, route, k, route.count / kinds, &ranks);
  }
  for (const RouteWork& route : input.routes) {
    const std::vector<ChunkTimes> times = LeastTimesOf(input, route);
    for (size_t s = 0; s < route.stages(); ++s) {
      RankOpening& rank = ranks[static_cast<size_t>(route.ranks[s])];
      rank.openings.push_back({times[s].head - rank.head, times[s].lag});
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    const RankOpening& rank = ranks[static_cast<size_t>(r)];
    if (rank.count == 0 || input.recomputes[static_cast<size_t>(r)]) continue;
    const auto index = static_cast<size_t>(r);
    Bound bound = BoundOfRank(rank, input.memory ? &input.memory_of[index] : nullptr);
    bound.rank = r;
    KeepLarger(best, bound);
  }
}

}  // namespace contraflow
