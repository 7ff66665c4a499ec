// Bounds that hold for any partition where each rank has several stages of one route.
//
// Weigh the ranks with any weights that sum up
// to 1. The largest rank has no less than all of them weighed,
//
//     makespan >= min over partitions of sum over r of weight(r) (head(r) + M work(r)),
//
// and the sum is one over stages, each with its own layers: a dynamic programme over their ends
// finds its minimum. Ranks that come out with more than others are given more weight, a few times.
//
// Layers are whole. Of a set of n layers the ranks have n together, and what k of them take is no
// less than the k shortest of the set do. So a makespan T needs
//
//     sum over r of (the most k with head(r) + M (work of the k shortest) <= T) >= n,
//
// for all layers with no less work than some length, whichever.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/partition/joint_bound.h"

namespace contraflow {
namespace {

/// Steps up to which the dynamic programme is worth its time.
constexpr int64_t kMostWindows = 2'000'000;

/// The bound of ranks that are weighed, of one route and ranks alike.
class WeighedBound {
 public:
  WeighedBound(const Spec& spec, const LayerStages& layers, LayerWork* work, const Plan& frame)
      : frame_(frame),
        layers_(layers),
        work_(*work),
        hop_(LeastHop(spec.costs)),
        extra_(layers.layers() - frame.stages) {
    first_.assign(static_cast<size_t>(frame.ranks), -1);
    for (int s = 0; s < frame.stages; ++s) {
      int& first = first_[RankOf(s)];
      if (first < 0) first = s;
    }
  }

  static bool Takes(const Spec& spec, const LayerStages& layers, const Plan& frame) {
    const int64_t window = layers.layers() - frame.stages + 1;
    return frame.routes.size() == 1 && spec.costs.microbatch_scale.empty() &&
           spec.costs.ranks.empty() && frame.stages * window * window <= kMostWindows;
  }

  PartitionBound Find() {
    PartitionBound best;
    std::vector<double> weights(first_.size(), 1 / static_cast<double>(first_.size()));
    for (int round = 0; round < kWeighings; ++round) {
      double value = 0;
      Partition partition = Least(weights, &value);
      const Time bound = static_cast<Time>(value * (1 - 1e-12));
      if (bound > best.value) best = {bound, partition};
      const std::vector<Time> loads = LoadsOf(partition);
      const auto most = static_cast<double>(std::ranges::max(loads));
      double sum = 0;
      for (size_t r = 0; r < loads.size(); ++r) {
        const double below = 1 - static_cast<double>(loads[r]) / most;
        weights[r] *= 1 - below / (1 + 0.1 * round);
        sum += weights[r];
      }
      for (double& weight : weights) weight /= sum;
    }
    return best;
  }

 private:
  static constexpr int kWeighings = 30;

  size_t RankOf(int s) const {
    return static_cast<size_t>(frame_.routes[0].ranks[static_cast<size_t>(s)]);
  }

  /// Of stage s with the layers i..j-1: the head of a rank's first one, and all micro-batches.
  Time Load(int s, int i, int j) {
    const Time own = frame_.microbatches * work_.Of(i, j);
    return first_[RankOf(s)] == s ? own + layers_.forward_before(i) + s * hop_ : own;
  }

  std::vector<Time> LoadsOf(const Partition& partition) {
    std::vector<Time> loads(first_.size(), 0);
    int i = 0;
    for (int s = 0; s < frame_.stages; ++s) {
      const int j = i + partition[static_cast<size_t>(s)];
      loads[RankOf(s)] += Load(s, i, j);
      i = j;
    }
    return loads;
  }

  /// The partition with the least weighed sum. Entry e of a stage: e layers more than one each.
  Partition Least(const std::vector<double>& weights, double* value) {
    const auto entries = static_cast<size_t>(extra_) + 1;
    constexpr double kNone = std::numeric_limits<double>::max();
    std::vector<double> least(entries, kNone);
    least[0] = 0;
    std::vector<std::vector<int>> from;
    for (int s = 0; s < frame_.stages; ++s) {
      std::vector<double> next(entries, kNone);
      std::vector<int>& origin = from.emplace_back(entries, 0);
      const double weight = weights[RankOf(s)];
      for (int before = 0; before <= extra_; ++before) {
        const double sum = least[static_cast<size_t>(before)];
        if (sum == kNone) continue;
        for (int after = before; after <= extra_; ++after) {
          const auto load = static_cast<double>(Load(s, s + before, s + 1 + after));
          const double now = sum + weight * load;
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

  const Plan& frame_;
  const LayerStages& layers_;
  LayerWork& work_;
  const Time hop_;
  const int extra_;         ///< layers more than stages
  std::vector<int> first_;  ///< stage of each rank
};

/// The least T with which the ranks, each from its head on, have room for all of a set of layers,
/// of which the k shortest take sums[k] for all micro-batches; no more than `enough`.
Time LeastRoom(const std::vector<Time>& heads, const std::vector<Time>& sums, Time enough) {
  const auto fits = [&](Time makespan) {
    size_t room = 0;
    for (const Time head : heads) {
      if (head > makespan) continue;
      const auto most = std::upper_bound(sums.begin(), sums.end(), makespan - head);
      room += static_cast<size_t>(most - sums.begin()) - 1;
    }
    return room + 1 >= sums.size();
  };
  Time low = 0;
  while (low < enough) {
    const Time middle = low + (enough - low) / 2;
    if (fits(middle)) {
      enough = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// What whole layers come to.
Time WholeLayers(const Spec& spec, const LayerStages& layers, const LayerWork& work,
                 const Plan& frame, Time enough) {
  std::vector<Time> heads;
  const Time hop = LeastHop(spec.costs);
  for (int r = 0; r < frame.ranks; ++r) {
    const std::vector<int>& ranks = frame.routes[0].ranks;
    const auto first = static_cast<int>(std::ranges::find(ranks, r) - ranks.begin());
    heads.push_back(layers.forward_before(first) + first * hop);
  }
  std::vector<Time> works;
  for (int i = 0; i < layers.layers(); ++i) {
    works.push_back(frame.microbatches * work.between(i, i + 1));
  }
  std::ranges::sort(works);
  Time best = 0;
  for (size_t first = 0; first < works.size(); ++first) {
    if (first > 0 && works[first] == works[first - 1]) continue;
    std::vector<Time> sums = {0};
    for (size_t k = first; k < works.size(); ++k) sums.push_back(sums.back() + works[k]);
    best = std::max(best, LeastRoom(heads, sums, enough));
  }
  return best;
}

}  // namespace

std::optional<PartitionBound> BoundOfDeep(const Spec& spec, const LayerStages& layers,
                                          LayerWork* work, const Plan& frame, Time enough) {
  if (!WeighedBound::Takes(spec, layers, frame)) return std::nullopt;
  PartitionBound bound = WeighedBound(spec, layers, work, frame).Find();
  const Time whole = WholeLayers(spec, layers, *work, frame, enough);
  bound.value = std::min(enough, std::max(bound.value, whole));
  return bound;
}

}  // namespace contraflow
