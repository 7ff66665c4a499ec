// A bound for any partition where each rank has several stages of one route, from layers that are
// whole.
//
// A rank begins when the first micro-batch has come through the stages before its first one, and
// before its first backward it can run forwards only. That backward begins no sooner than the first
// micro-batch has gone through all stages and come back to the last stage of the rank. So a rank
// with some layers takes
//
//     makespan >= head + M (their work),
//     makespan >= head of its first backward + M (their work - their forwards),
//     makespan >= head of its first backward + M (their work) - the forwards that its memory holds.
//
// A set of n layers is on n ranks together, and k of them take no less than the k shortest of the
// set. So a makespan T needs
//
//     sum over r of (the most k with which no floor of rank r is above T) >= n,
//
// for all layers with no less work than some length, whichever.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/layer_work.h"
#include "schedules/partition/stages.h"

namespace contraflow {
namespace {

/// Earliest times of a rank: of its first forward, and of its first backward.
struct Heads {
  Time forward = 0, backward = 0;
};

std::vector<Heads> HeadsOf(const Spec& spec, const LayerStages& layers, const Plan& frame) {
  const std::vector<int>& of = frame.routes[0].ranks;
  const Time hop = LeastHop(spec.costs);
  std::vector<Time> hops = {0};
  for (size_t s = 1; s < of.size(); ++s) {
    hops.push_back(hops.back() + (of[s] != of[s - 1] ? hop : 0));
  }
  const int all = layers.layers(), stages = frame.stages;
  const Time way = layers.forward_before(all) + layers.backward_before(all) + 2 * hops.back();
  std::vector<std::optional<Heads>> heads(static_cast<size_t>(frame.ranks));
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    std::optional<Heads>& rank = heads[static_cast<size_t>(of[at])];
    // The stages before and after it have a layer each, at least.
    if (!rank) rank = Heads{layers.forward_before(s) + hops[at], 0};
    rank->backward = way - layers.backward_before(all - (stages - 1 - s)) - hops[at];
  }
  std::vector<Heads> some;
  for (const std::optional<Heads>& rank : heads) some.push_back(rank.value());
  return some;
}

/// The sums of the k shortest of these, by k.
std::vector<Time> SumsOf(std::vector<Time> works) {
  std::ranges::sort(works);
  std::vector<Time> sums = {0};
  for (const Time work : works) sums.push_back(sums.back() + work);
  return sums;
}

/// How many layers fit, of which the k shortest take sums[k]; -1: not even none.
int64_t MostThatFit(const std::vector<Time>& sums, Time room) {
  auto k = static_cast<int64_t>(sums.size()) - 1;
  // The result is negative for layers that save more than their time without the forward.
  while (k >= 0 && sums[static_cast<size_t>(k)] > room) --k;
  return k;
}

}  // namespace

Time BoundOfDeep(const Spec& spec, const LayerStages& layers, const LayerWork& work,
                 const Plan& frame, Time enough) {
  if (frame.routes.size() != 1 || !spec.costs.microbatch_scale.empty() ||
      !spec.costs.ranks.empty()) {
    return 0;
  }
  const std::vector<Heads> heads = HeadsOf(spec, layers, frame);
  const std::optional<Time> held = MostForwardsHeld(spec, layers);
  const auto works_of = [&](Time least, bool forwards) {
    std::vector<Time> works;
    for (int i = 0; i < layers.layers(); ++i) {
      const Time one = work.between(i, i + 1);
      const Time forward = layers.forward_before(i + 1) - layers.forward_before(i);
      if (one >= least) works.push_back(frame.microbatches * (forwards ? one : one - forward));
    }
    return works;
  };
  std::vector<Time> lengths;
  for (int i = 0; i < layers.layers(); ++i) lengths.push_back(work.between(i, i + 1));
  std::ranges::sort(lengths);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  Time low = 0;
  for (const Time least : lengths) {
    const std::vector<Time> sums = SumsOf(works_of(least, true));
    const std::vector<Time> after = SumsOf(works_of(least, false));
    const auto fits = [&](Time makespan) {
      int64_t room = 0;
      for (const auto& [forward, backward] : heads) {
        int64_t most = std::min(MostThatFit(sums, makespan - forward),
                                MostThatFit(after, makespan - backward));
        if (held) most = std::min(most, MostThatFit(sums, makespan - backward + *held));
        if (most < 0) return false;
        room += most;
      }
      return room + 1 >= static_cast<int64_t>(sums.size());
    };
    Time high = enough;
    while (low < high) {
      const Time middle = low + (high - low) / 2;
      if (fits(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
  }
  return low;
}

}  // namespace contraflow
