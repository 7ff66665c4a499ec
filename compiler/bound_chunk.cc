// Critical path. A micro-batch goes down and up all stages, over every hop twice, and somewhere on
// its way up a weight gradient is the last thing to be done. F lasts at least f and the way to an
// input gradient at least b, alone, in one go with W or in a pair.
//
// Busy rank. A rank has all its work to do, one instruction after the other. No forward of a stage
// can start before its micro-batch has come through all stages upstream (head), no backward before
// it has been to the last stage and back, no rest of a backward before B; and after each the
// micro-batch has to go on through the stages that follow (tail). For every set of these jobs
//
//     makespan >= least head + sum of durations + least tail,
//
// and the largest of these is the makespan of Jackson's preemptive schedule. With all jobs in the
// set this is head + busy. Micro-batches that cost the same are one job.
//
// Recompute. R is one more job between F and B of its chunk, and a lag is never shorter than it.
//
// Pairs. One of x's forward and y's backward lasts at least f of x and what is left of y's backward
// when y's saving is taken off its rest, and then off b. In the interval of the pair there is room
// for that, then, in any order; so the rest has no head of its own behind B. The last backward of a
// rank is in no pair, for the pair's forward would have its backward still to come: of all work
// together, one saving is never made.

#include <algorithm>
#include <limits>

#include "compiler/bound_work.h"
#include "compiler/jackson.h"

namespace contraflow {
namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();

struct Rank {
  Jackson jobs;
  Time head = kNever;
  Time work = 0;
  Time least_saving = kNever;
};

/// `count` micro-batches that are like the k-th of the route.
void Add(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
         std::vector<Rank>* ranks, Bound* best) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  const auto all = static_cast<Time>(count);
  for (size_t s = 0; s < route.stages(); ++s) {
    const ChunkWork& chunk = route.At(s, k);
    const auto& [head, lag, tail] = times[s];
    const Time rest = input.RestOnPath(route, s, chunk);
    const Time back = head + chunk.f + lag;  // when its backward can start
    const Time after = std::max(rest, tail);
    const Time path = back + chunk.b + after;
    Raise(best, {.value = path, .kind = BoundKind::kCriticalPath, .work = path});
    Rank& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    const Time off_rest = std::min(chunk.rest, chunk.saving), off_b = chunk.saving - off_rest;
    rank.jobs.Add(head, all * chunk.f, lag + chunk.b + after);
    if (chunk.again > 0) {
      rank.jobs.Add(head + chunk.f, all * chunk.again, chunk.b + after);
    }
    // Of merged jobs the tail is that of the last one, whose rest is a job as well.
    rank.jobs.Add(back, all * (chunk.b - off_b), tail);
    rank.jobs.Add(input.pairs ? back : back + chunk.b, all * (chunk.rest - off_rest), 0);
    rank.head = std::min(rank.head, head);
    rank.work += all * chunk.work();
    rank.least_saving = std::min(rank.least_saving, chunk.saving);
  }
}

}  // namespace

void RaiseByChunks(const BoundInput& input, Bound* best) {
  std::vector<Rank> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) Add(input, route, k, route.count / kinds, &ranks, best);
  }
  for (int r = 0; r < input.ranks; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    if (rank.head == kNever) continue;
    Bound bound = {.kind = BoundKind::kBusyRank, .rank = r};
    bound.head = rank.head;
    bound.work = rank.work + rank.least_saving;
    bound.value = bound.head + bound.work;
    Raise(best, bound);
    bound.value = rank.jobs.Makespan();
    if (bound.value <= best->value) continue;
    const auto [head, work, tail] = rank.jobs.Binding();
    bound.head = head;
    bound.work = work;
    bound.tail = tail;
    Raise(best, bound);
  }
}

}  // namespace contraflow
