// A stash that waits for W is never on the host. With OFFLOAD a limit says nothing about how many
// micro-batches are in flight, but a cell is copied only between its F and its B: the stash that B
// leaves stays on the device until W.
//
// When the last B of a rank runs, its own activation is there, and a stash for each cell that has
// had its B and not its W. So these are no more than (limit - activation) / stash, and when that B
// has ended no more than x = 1 + (limit - activation) / stash rests are left. All else that the
// rank has to do is done, for every F and every R comes before a B of the rank; the way upstream of
// that micro-batch follows, or its own rest:
//
//     makespan >= head + work - the x longest rests + tail.
//
// Without a limit x is all of them, and only the tail of the critical path is left. If stages of
// the rank differ, activation and stash are the least of any. The last backward of a rank is in no
// pair, for a pair's forward has its backward still to come.

#include <algorithm>
#include <functional>
#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

struct RankRests {
  Time head = kNever, tail = kNever, work = 0;
  std::vector<Time> rests;
  std::vector<int> stages;
};

void Add(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
         std::vector<RankRests>* ranks) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  for (size_t s = 0; s < route.stages(); ++s) {
    const CellWork& chunk = route.At(s, k);
    RankRests& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    rank.head = std::min(rank.head, times[s].head);
    rank.tail = std::min(rank.tail, std::max(times[s].tail, input.RestOnPath(route, s, chunk)));
    rank.work += static_cast<Time>(count) * chunk.work();
    rank.rests.insert(rank.rests.end(), count, chunk.weight);
  }
}

}  // namespace

void RaiseByStashes(const BoundInput& input, const CostModel& costs, int64_t limit, Bound* best) {
  std::vector<RankRests> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) Add(input, route, k, route.count / kinds, &ranks);
    for (size_t s = 0; s < route.stages(); ++s) {
      ranks[static_cast<size_t>(route.ranks[s])].stages.push_back(static_cast<int>(s));
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    RankRests& rank = ranks[static_cast<size_t>(r)];
    const MemoryLimit memory(costs, limit, rank.stages);
    // No schedule runs in less than an activation: none meets such a limit.
    if (rank.rests.empty() || memory.stash() == 0 || limit < memory.activation()) continue;
    const int64_t left = 1 + (limit - memory.activation()) / memory.stash();
    const int64_t most = std::min(left, static_cast<int64_t>(rank.rests.size()));
    const auto longest = rank.rests.begin() + static_cast<std::ptrdiff_t>(most);
    std::partial_sort(rank.rests.begin(), longest, rank.rests.end(), std::greater<>());
    Bound bound = {.kind = BoundKind::kStashes, .rank = r, .head = rank.head, .tail = rank.tail};
    bound.work = rank.work;
    std::for_each(rank.rests.begin(), longest, [&bound](Time rest) { bound.work -= rest; });
    bound.value = bound.head + bound.work + bound.tail;
    KeepLarger(best, bound);
  }
}

}  // namespace contraflow
