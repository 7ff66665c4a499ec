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
// set this is head + busy. Micro-batches that cost the same are one job. If many differ, those with
// about the same work are one as well, with the least of their heads and tails: that proves a
// little less, and sorting all would take most of the time.
//
// Recompute. R is one more job between F and B of its chunk, and a lag is never shorter than it.
//
// Pairs. One of x's forward and y's backward lasts at least f of x and what is left of y's backward
// when y's saving is taken off its rest, and then off b. In the interval of the pair there is room
// for that, then, in any order; so the rest has no head of its own after B. The last backward of a
// rank is in no pair, for the pair's forward would have its backward still to come: of all work
// together, one saving is never made. That is so among any of its chunks, also among those that
// save as much as any does: a pair saves no more than either of its chunks lets it, so one saving
// that is as large as any is never made.

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "compiler/bound/jackson.h"
#include "compiler/bound/work.h"

namespace contraflow {
namespace {

struct ChunkRank {
  Jackson jobs;
  Time head = kNever;
  Time work = 0;
  Time least_saving = kNever, largest_saving = 0;
  bool clipped = false;

  Time NeverSaved() const { return clipped ? least_saving : largest_saving; }
};

/// The jobs of some micro-batches on one stage: merged, they start no earlier than the first of
/// them could, and no less follows than the least of what follows each.
struct Jobs {
  Time f_head = kNever, recompute_head = kNever, b_head = kNever, rest_head = kNever;
  Time f = 0, recompute = 0, b = 0, rest = 0;
  Time f_tail = kNever, recompute_tail = kNever, b_tail = kNever;
};

void AddJob(Time head, Time duration, Time tail, ChunkRank* rank) {
  if (duration > 0) rank->jobs.Add(head, duration, tail);
}

/// The micro-batches `ks` as one, each `count` times.
void Add(const BoundInput& input, const RouteWork& route, std::span<const size_t> ks, size_t count,
         std::vector<ChunkRank>* ranks, Bound* best) {
  std::vector<Jobs> merged(route.stages());
  const auto all = static_cast<Time>(count);
  for (const size_t k : ks) {
    const std::vector<ChunkTimes> times = TimesOf(input, route, k);
    for (size_t s = 0; s < route.stages(); ++s) {
      const CellWork& chunk = route.At(s, k);
      const auto& [head, lag, tail] = times[s];
      const Time rest = input.RestOnPath(route, s, chunk);
      const Time back = head + chunk.f + lag;  // when its backward can start
      const Time after = std::max(rest, tail);
      const Time path = back + chunk.b + after;
      KeepLarger(best, {.value = path, .kind = BoundKind::kCriticalPath, .work = path});
      const Time off_rest = std::min(chunk.weight, chunk.saving), off_b = chunk.saving - off_rest;
      Jobs& jobs = merged[s];
      jobs.f_head = std::min(jobs.f_head, head);
      jobs.f += all * chunk.f;
      jobs.f_tail = std::min(jobs.f_tail, lag + chunk.b + after);
      jobs.recompute_head = std::min(jobs.recompute_head, head + chunk.f);
      jobs.recompute += all * chunk.recompute;
      jobs.recompute_tail = std::min(jobs.recompute_tail, chunk.b + after);
      // The tail of merged jobs is that of the last one, whose rest is a job as well.
      jobs.b_head = std::min(jobs.b_head, back);
      jobs.b += all * (chunk.b - off_b);
      jobs.b_tail = std::min(jobs.b_tail, tail);
      jobs.rest_head = std::min(jobs.rest_head, input.pairs ? back : back + chunk.b);
      jobs.rest += all * (chunk.weight - off_rest);
      ChunkRank& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
      rank.head = std::min(rank.head, head);
      rank.work += all * chunk.work();
      rank.least_saving = std::min(rank.least_saving, chunk.saving);
      rank.largest_saving = std::max(rank.largest_saving, chunk.saving);
      rank.clipped = rank.clipped || chunk.clipped;
    }
  }
  for (size_t s = 0; s < route.stages(); ++s) {
    ChunkRank& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    const Jobs& jobs = merged[s];
    AddJob(jobs.f_head, jobs.f, jobs.f_tail, &rank);
    AddJob(jobs.recompute_head, jobs.recompute, jobs.recompute_tail, &rank);
    AddJob(jobs.b_head, jobs.b, jobs.b_tail, &rank);
    AddJob(jobs.rest_head, jobs.rest, 0, &rank);
  }
}

/// The micro-batches of a route, those with the least work first, so that neighbours are alike.
std::vector<size_t> ByWork(const RouteWork& route) {
  std::vector<size_t> ks(route.alike ? 1 : route.count);
  std::iota(ks.begin(), ks.end(), size_t{0});
  std::stable_sort(ks.begin(), ks.end(), [&](size_t x, size_t y) {
    return route.At(0, x).work() < route.At(0, y).work();
  });
  return ks;
}

}  // namespace

void RaiseByChunks(const BoundInput& input, Bound* best, size_t most_jobs) {
  std::vector<ChunkRank> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const std::vector<size_t> ks = ByWork(route);
    const size_t together = (ks.size() + most_jobs - 1) / most_jobs;
    for (size_t k = 0; k < ks.size(); k += together) {
      Add(input, route, std::span(ks).subspan(k, std::min(together, ks.size() - k)),
          route.count / ks.size(), &ranks, best);
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    ChunkRank& rank = ranks[static_cast<size_t>(r)];
    if (rank.head == kNever) continue;
    Bound bound = {.kind = BoundKind::kBusyRank, .rank = r};
    bound.head = rank.head;
    bound.work = rank.work + rank.NeverSaved();
    bound.value = bound.head + bound.work;
    KeepLarger(best, bound);
    bound.value = rank.jobs.Makespan();
    if (bound.value <= best->value) continue;
    const auto [head, work, tail] = rank.jobs.Binding();
    bound.head = head;
    bound.work = work;
    bound.tail = tail;
    KeepLarger(best, bound);
  }
}

}  // namespace contraflow
