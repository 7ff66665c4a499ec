// Bounds that hold for any partition where each rank has several stages of one route.
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
//     makespan >= head + M (work of its stages - all their forwards),
//     makespan >= head + M (work of its stages) - the forwards that its memory holds.
//
// Weigh these floors, of all ranks, with any weights that sum up to 1. The largest is no less than
// all of them weighed, and that is a sum over stages, each with its own layers: a dynamic programme
// over their ends finds the partition with the least. Floors that come out higher than others are
// given more weight, a few times.
//
// whole_layers.cc has the bound of layers that are whole.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/partition/deep_route.h"
#include "schedules/partition/joint_bound.h"

namespace contraflow {
namespace {

/// Steps up to which the dynamic programme is worth its time.
constexpr int64_t kMostWindows = 2'000'000;

/// The bound of floors that are weighed. Each rank has those of its stages, then that of its first
/// backward. The one of its memory comes before them, as no forward is taken from it.
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
      weights.emplace_back(route_.StagesOf(r).size() + 2, 1.0);
      if (!route_.held()) weights.back().front() = 0;
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
    for (size_t r = 0; r < floors.size(); ++r) {
      floors[r].resize(route_.StagesOf(r).size() + 2);
      floors[r].front() = -route_.held().value_or(0);
    }
    int i = 0;
    for (size_t s = 0; s < partition.size(); ++s) {
      const int j = i + partition[s];
      std::vector<Time>& of_rank = floors[route_.RankOf(s)];
      const size_t own = route_.PassOf(s) + 1;
      const Time work = route_.microbatches() * work_.Of(i, j);
      for (size_t p = 0; p < of_rank.size(); ++p) {
        of_rank[p] += p > own ? work - route_.microbatches() * Forward(i, j) : work;
      }
      of_rank[own] += route_.Head(s, i);
      if (own + 2 == of_rank.size()) {
        of_rank.front() += route_.BackAt(s, j);
        of_rank.back() += route_.BackAt(s, j);
      }
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
      const size_t own = route_.PassOf(s) + 1;
      const auto here = of_rank.begin() + static_cast<std::ptrdiff_t>(own);
      const double later = std::accumulate(here + 1, of_rank.end(), 0.0);
      const double all = std::accumulate(of_rank.begin(), here + 1, later);
      const double back = own + 2 == of_rank.size() ? of_rank.front() + of_rank.back() : 0;
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
    for (const auto& of_rank : weights) {
      *value -= of_rank.front() * static_cast<double>(route_.held().value_or(0));
    }
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
  bound.value = std::min(enough, std::max(bound.value, whole));
  return bound;
}

}  // namespace contraflow
