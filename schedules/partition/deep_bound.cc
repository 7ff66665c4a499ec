// Bounds that hold for any partition where each rank has several stages of one route.
//
//
// Before the first micro-batch reaches stage s, its rank can only run forwards of the stages that
// it has before s, and before its first backward nothing but forwards. So with each stage s of a
// rank
//
//     makespan >= head(s) + M (work of its stages - forwards of those before s),
//
// and with the head of its first backward, which is the way of a micro-batch through all stages and
// back to the last one of the rank,
//
//     makespan >= head + M (work of its stages - all their forwards).
//
// Weigh these floors, of all ranks, with any weights that sum up to 1. The largest is no less than
// all of them weighed, and that is a sum over stages, each with its own layers: a dynamic programme
// over their ends finds the partition with the least. Floors that come out higher than others are
// given more weight, a few times.
//
// Layers are whole. Of a set of n layers the ranks have n together, and what k of them take is no
// less than the k shortest of the set do. So a makespan T needs
//
//     sum over r of (the most k with which neither its first floor nor its last is above T) >= n,
//
// for all layers with no less work than some length, whichever. And each layer is in some stage s,
// whose rank has a layer in each of its other stages as well: the makespan is no less than the
// least that this comes to, of all stages that have as many layers before and behind them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/partition/joint_bound.h"

namespace contraflow {
namespace {

/// Steps up to which the dynamic programme is worth its time.
constexpr int64_t kMostWindows = 2'000'000;

/// What passes before and between the stages of one route on ranks that are alike.
class DeepRoute {
 public:
  DeepRoute(const Spec& spec, const LayerStages& layers, const Plan& frame)
      : layers_(layers), microbatches_(frame.microbatches), of_(frame.routes[0].ranks) {
    const Time hop = LeastHop(spec.costs);
    stages_.resize(static_cast<size_t>(frame.ranks));
    for (size_t s = 0; s < of_.size(); ++s) {
      hops_.push_back(s == 0 ? 0 : hops_.back() + (of_[s] != of_[s - 1] ? hop : 0));
      pass_.push_back(stages_[RankOf(s)].size());
      stages_[RankOf(s)].push_back(s);
    }
  }

  Time microbatches() const { return microbatches_; }
  size_t stages() const { return of_.size(); }
  /// How many ranks there are, and which stages each has.
  size_t ranks() const { return stages_.size(); }
  const std::vector<size_t>& StagesOf(size_t rank) const { return stages_[rank]; }
  size_t RankOf(size_t s) const { return static_cast<size_t>(of_[s]); }
  /// How many stages of its rank are before stage s.
  size_t PassOf(size_t s) const { return pass_[s]; }

  /// When the first micro-batch can be at stage s, whose first layer is `i`.
  Time Head(size_t s, int i) const { return layers_.forward_before(i) + hops_[s]; }
  /// When it can be back at stage s, whose last layer is the one before `j`.
  Time BackAt(size_t s, int j) const {
    const int all = layers_.layers();
    return layers_.forward_before(all) + hops_.back() + layers_.backward_before(all) -
           layers_.backward_before(j) + hops_.back() - hops_[s];
  }

 private:
  const LayerStages& layers_;
  const Time microbatches_;
  const std::vector<int>& of_;
  std::vector<Time> hops_;  // before each stage, what messages take
  std::vector<size_t> pass_;
  std::vector<std::vector<size_t>> stages_;
};

/// The bound of floors that are weighed. Floor p of a rank is that of its p-th stage; behind these
/// comes the one of its first backward.
class WeighedBound {
 public:
  WeighedBound(const LayerStages& layers, LayerWork* work, const DeepRoute& route)
      : route_(route),
        layers_(layers),
        work_(*work),
        extra_(layers.layers() - static_cast<int>(route.stages())) {}

  PartitionBound Find() {
    PartitionBound best;
    Weights weights;
    for (size_t r = 0; r < route_.ranks(); ++r) {
      weights.emplace_back(route_.StagesOf(r).size() + 1, 1.0);
    }
    for (int round = 0; round < kWeighings; ++round) {
      double sum = 0;
      for (const auto& of_rank : weights)
        sum = std::accumulate(of_rank.begin(), of_rank.end(), sum);
      for (auto& of_rank : weights) {
        for (double& weight : of_rank) weight /= sum;
      }
      double value = 0;
      Partition partition = Least(weights, &value);
      const Time bound = static_cast<Time>(value * (1 - 1e-11));
      if (bound > best.value) best = {bound, partition};
      const auto floors = FloorsOf(partition);
      Time most = 1;
      for (const auto& of_rank : floors) most = std::max(most, std::ranges::max(of_rank));
      for (size_t r = 0; r < floors.size(); ++r) {
        for (size_t p = 0; p < floors[r].size(); ++p) {
          const double below = 1 - static_cast<double>(floors[r][p]) / static_cast<double>(most);
          weights[r][p] *= std::exp(-kStep * below / (1 + 0.1 * round));
        }
      }
    }
    return best;
  }

 private:
  static constexpr int kWeighings = 60;
  static constexpr double kStep = 30;
  using Weights = std::vector<std::vector<double>>;  // by rank and floor

  Time Forward(int i, int j) const { return layers_.forward_before(j) - layers_.forward_before(i); }

  std::vector<std::vector<Time>> FloorsOf(const Partition& partition) {
    std::vector<std::vector<Time>> floors(route_.ranks());
    for (size_t r = 0; r < floors.size(); ++r) floors[r].resize(route_.StagesOf(r).size() + 1);
    int i = 0;
    for (size_t s = 0; s < partition.size(); ++s) {
      const int j = i + partition[s];
      std::vector<Time>& of_rank = floors[route_.RankOf(s)];
      const size_t pass = route_.PassOf(s);
      const Time work = route_.microbatches() * work_.Of(i, j);
      for (size_t p = 0; p < of_rank.size(); ++p) {
        of_rank[p] += p > pass ? work - route_.microbatches() * Forward(i, j) : work;
      }
      of_rank[pass] += route_.Head(s, i);
      if (pass + 2 == of_rank.size()) of_rank.back() += route_.BackAt(s, j);
      i = j;
    }
    return floors;
  }

  /// The partition with the least weighed sum. Entry e of a stage: e layers more than one each.
  Partition Least(const Weights& weights, double* value) {
    const auto entries = static_cast<size_t>(extra_) + 1;
    constexpr double kNone = std::numeric_limits<double>::max();
    std::vector<double> least(entries, kNone);
    least[0] = 0;
    std::vector<std::vector<int>> from;
    for (size_t s = 0; s < route_.stages(); ++s) {
      std::vector<double> next(entries, kNone);
      std::vector<int>& origin = from.emplace_back(entries, 0);
      const std::vector<double>& of_rank = weights[route_.RankOf(s)];
      const size_t pass = route_.PassOf(s);
      const auto here = of_rank.begin() + static_cast<std::ptrdiff_t>(pass);
      const double later = std::accumulate(here + 1, of_rank.end(), 0.0);
      const double all = std::accumulate(of_rank.begin(), here + 1, later);
      const double back = pass + 2 == of_rank.size() ? of_rank.back() : 0;
      const auto count = static_cast<double>(route_.microbatches());
      const int one = static_cast<int>(s);
      for (int before = 0; before <= extra_; ++before) {
        const double sum = least[static_cast<size_t>(before)];
        if (sum == kNone) continue;
        const int i = one + before;
        const double head = sum + *here * static_cast<double>(route_.Head(s, i));
        for (int after = before; after <= extra_; ++after) {
          const int j = one + 1 + after;
          const double now = head +
                             count * (all * static_cast<double>(work_.Of(i, j)) -
                                      later * static_cast<double>(Forward(i, j))) +
                             back * static_cast<double>(route_.BackAt(s, j));
          if (now >= next[static_cast<size_t>(after)]) continue;
          next[static_cast<size_t>(after)] = now;
          origin[static_cast<size_t>(after)] = before;
        }
      }
      least = std::move(next);
    }
    *value = least.back();
    Partition partition(from.size());
    int after = extra_;
    for (size_t s = from.size(); s-- > 0;) {
      const int before = from[s][static_cast<size_t>(after)];
      partition[s] = 1 + after - before;
      after = before;
    }
    return partition;
  }

  const DeepRoute& route_;
  const LayerStages& layers_;
  LayerWork& work_;
  const int extra_;  ///< layers more than stages
};

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
  // Less than nothing is left of layers that save more than they take beside their forwards.
  while (k >= 0 && sums[static_cast<size_t>(k)] > room) --k;
  return k;
}

/// What whole layers come to, up to `enough`.
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
        const int64_t most =
            std::min(MostThatFit(sums, makespan - head), MostThatFit(behind, makespan - back));
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

/// What the stages come to that one layer may be in, of the layer where that is most.
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
  /// Of a micro-batch of this layer, with its forward or beside it, in whichever stage.
  Time Least(int layer, bool forward) const {
    const Time all = work_.between(layer, layer + 1);
    return forward ? all : all + layers_.forward_before(layer) - layers_.forward_before(layer + 1);
  }

  /// Of a stage with at least one of the layers first..last.
  Time LeastOfAny(int first, int last, bool forward) const {
    Time least = std::numeric_limits<Time>::max(), saved = 0;
    for (int layer = first; layer <= last; ++layer) {
      const Time one = Least(layer, forward);
      least = std::min(least, one);
      saved += std::min<Time>(one, 0);
    }
    return saved < 0 ? saved : least;
  }

  /// Of the rank of stage s with this layer in it, whose stage begins no sooner than `head` and
  /// messages.
  Time Floor(int layer, Time head, size_t s) const {
    const std::vector<size_t>& stages = route_.StagesOf(route_.RankOf(s));
    Time from_here = Least(layer, true), behind = Least(layer, false);
    for (const size_t other : stages) {
      const int at = static_cast<int>(other);
      if (other < s) {
        const Time least = LeastOfAny(at, std::min(at + extra_, layer - 1), false);
        from_here += least;
        behind += least;
      } else if (other > s) {
        from_here += LeastOfAny(std::max(at, layer + 1), at + extra_, true);
        behind += LeastOfAny(std::max(at, layer + 1), at + extra_, false);
      }
    }
    const int after = static_cast<int>(route_.stages() - 1 - stages.back());
    return std::max(
        route_.Head(s, 0) + head + route_.microbatches() * from_here,
        route_.BackAt(stages.back(), layers_.layers() - after) + route_.microbatches() * behind);
  }

  const LayerStages& layers_;
  const LayerWork& work_;
  const DeepRoute& route_;
  const int extra_;  ///< layers more than stages
};

}  // namespace

std::optional<PartitionBound> BoundOfDeep(const Spec& spec, const LayerStages& layers,
                                          LayerWork* work, const Plan& frame, Time enough) {
  const int64_t window = layers.layers() - frame.stages + 1;
  if (frame.routes.size() != 1 || !spec.costs.microbatch_scale.empty() ||
      !spec.costs.ranks.empty() || frame.stages * window * window > kMostWindows) {
    return std::nullopt;
  }
  const DeepRoute route(spec, layers, frame);
  PartitionBound bound = WeighedBound(layers, work, route).Find();
  const Time whole = WholeLayers(layers, *work, route, enough);
  const Time one = OneLayer(layers, *work, route).Find();
  bound.value = std::min(enough, std::max({bound.value, whole, one}));
  return bound;
}

}  // namespace contraflow
