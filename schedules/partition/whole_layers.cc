// Bounds for any partition where each rank has several stages, from layers that are whole.
//
// A set of n layers is on n ranks together, and k of them take no less than the k shortest of the
// set. So a makespan T needs
//
//     sum over r of (the most k with which no floor that is known of it is above T) >= n,
//
// for all layers with no less work than some length, whichever. And each layer is in some stage s,
// whose rank has a layer in each of its other stages as well: the makespan is no less than the
// least that this comes to, of all stages that have as many layers before and after them.

#include <algorithm>
#include <cstdint>
#include <limits>
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

/// Time of the stages that one layer may be in, of the layer where that is most.
class OneLayer {
 public:
  OneLayer(const LayerStages& layers, const LayerWork& work, const DeepRoute& route)
      : layers_(layers),
        work_(work),
        route_(route),
        extra_(layers.layers() - static_cast<int>(route.stages())) {}

  Time Find() const {
    Time most = 0, head = 0;
    for (int layer = 0; layer < layers_.layers(); ++layer) {
      // Its stage may begin with layers before it, if these take less than they delay.
      head = layer == 0 ? 0 : head + route_.microbatches() * Least(layer - 1, true);
      head = std::min(head, layers_.forward_before(layer));
      Time least = std::numeric_limits<Time>::max();
      const int last = static_cast<int>(route_.stages()) - 1;
      for (int s = std::max(0, layer - extra_); s <= std::min(layer, last); ++s) {
        least = std::min(least, Floor(layer, head, static_cast<size_t>(s)));
      }
      most = std::max(most, least);
    }
    return most;
  }

 private:
  /// Least time of a micro-batch of this layer, with or without its forward, in any stage.
  Time Least(int layer, bool forward) const {
    const Time all = work_.between(layer, layer + 1);
    return forward ? all : all + layers_.forward_before(layer) - layers_.forward_before(layer + 1);
  }

  /// Least time of a stage with at least one of the layers first..last.
  Time LeastOfAny(int first, int last, bool forward) const {
    Time least = std::numeric_limits<Time>::max(), saved = 0;
    for (int layer = first; layer <= last; ++layer) {
      const Time one = Least(layer, forward);
      least = std::min(least, one);
      saved += std::min<Time>(one, 0);
    }
    return saved < 0 ? saved : least;
  }

  /// Floor of the rank of stage s with this layer in it, whose stage begins no sooner than `head`
  /// and messages.
  Time Floor(int layer, Time head, size_t s) const {
    const std::vector<size_t>& stages = route_.StagesOf(route_.RankOf(s));
    Time from_here = Least(layer, true), behind = Least(layer, false), all = from_here;
    for (const size_t other : stages) {
      const int at = static_cast<int>(other);
      if (other < s) {
        const Time least = LeastOfAny(at, std::min(at + extra_, layer - 1), false);
        from_here += least;
        behind += least;
        all += LeastOfAny(at, std::min(at + extra_, layer - 1), true);
      } else if (other > s) {
        const Time least = LeastOfAny(std::max(at, layer + 1), at + extra_, true);
        from_here += least;
        all += least;
        behind += LeastOfAny(std::max(at, layer + 1), at + extra_, false);
      }
    }
    const int after = static_cast<int>(route_.stages() - 1 - stages.back());
    const Time back = route_.BackAt(stages.back(), layers_.layers() - after);
    const Time count = route_.microbatches();
    Time most = std::max(route_.Head(s, 0) + head + count * from_here, back + count * behind);
    if (route_.held()) most = std::max(most, back + count * all - *route_.held());
    return most;
  }

  const LayerStages& layers_;
  const LayerWork& work_;
  const DeepRoute& route_;
  const int extra_;  ///< layers more than stages
};

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

Time HeaviestLayer(const LayerStages& layers, const LayerWork& work, const DeepRoute& route) {
  return OneLayer(layers, work, route).Find();
}

}  // namespace contraflow
