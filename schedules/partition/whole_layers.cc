// Bounds for any partition where each rank has several stages, from layers that are whole.
//
// A set of n layers is on n ranks together, and k of them take no less than the k shortest of the
// set. So a makespan T needs
//
//     sum over r of (the most k with which no floor that is known of it is above T) >= n,
//
// for all layers with no less work than some length, whichever.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedules/partition/deep_route.h"

namespace contraflow {
namespace {

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

Time WholeLayers(const LayerStages& layers, const LayerWork& work, const DeepRoute& route,
                 Time enough) {
  const auto all = static_cast<int>(route.stages());
  std::vector<std::pair<Time, Time>> heads;  // of the first stage, of the first backward
  for (size_t r = 0; r < route.ranks(); ++r) {
    const size_t first = route.StagesOf(r).front(), last = route.StagesOf(r).back();
    const int behind = all - 1 - static_cast<int>(last);
    heads.emplace_back(route.Head(first, static_cast<int>(first)),
                       route.BackAt(last, layers.layers() - behind));
  }
  const auto works_of = [&](Time least, bool forwards) {
    std::vector<Time> works;
    for (int i = 0; i < layers.layers(); ++i) {
      const Time one = work.between(i, i + 1);
      const Time forward = layers.forward_before(i + 1) - layers.forward_before(i);
      if (one >= least) works.push_back(route.microbatches() * (forwards ? one : one - forward));
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
    const std::vector<Time> behind = SumsOf(works_of(least, false));
    const auto fits = [&](Time makespan) {
      int64_t room = 0;
      for (const auto& [head, back] : heads) {
        int64_t most =
            std::min(MostThatFit(sums, makespan - head), MostThatFit(behind, makespan - back));
        if (route.held()) most = std::min(most, MostThatFit(sums, makespan - back + *route.held()));
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
