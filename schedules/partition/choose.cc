// A step takes no less than, for any rank: the forwards of the layers before its first stage and
// their messages, all its own work, and the backwards of those layers with their messages. That
// depends on no order, so the partition with the least of it is a good start for any schedule. The
// judge says what an order makes of it.

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "schedules/partition/partition.h"

namespace contraflow {
namespace {

constexpr Time kUnreached = std::numeric_limits<Time>::max();
/// Steps of the exact method up to which it is worth its time.
constexpr int64_t kMostSteps = 50'000'000;
/// Quick lower bounds that take as long as the judgement that one does not spare.
constexpr int64_t kLeastEach = 3;

/// The same for each of several stages of a rank: what comes before the first of them and after
/// the last, and the work of all.
class Balance {
 public:
  Balance(const LayerStages& layers, const Plan& frame, const CostModel& costs)
      : layers_(layers), frame_(frame), hop_(costs.comm.latency + costs.comm.occupancy) {
    for (const RankCost& rank : costs.ranks) speeds_.push_back(rank.speed);
    speeds_.resize(static_cast<size_t>(frame.ranks), 1);
    for (const Route& route : frame.routes) {
      std::vector<Time> hops = {0};
      for (size_t s = 1; s < route.ranks.size(); ++s) {
        hops.push_back(hops.back() + (route.ranks[s] == route.ranks[s - 1] ? 0 : hop_));
      }
      hops_.push_back(std::move(hops));
    }
  }

  /// Time of stage s of a route, as if its rank had no other: with the layers first..last-1.
  Time OfStage(size_t route, int s, int first, int last) const {
    const auto rank = static_cast<size_t>(frame_.routes[route].ranks[static_cast<size_t>(s)]);
    return Around(route, s, first) + Work(route, rank, first, last);
  }

  struct Value {
    Time most = 0;       ///< of the busiest rank
    double squares = 0;  ///< of all ranks' work, which tells apart what leaves that rank as it is
    int busiest = 0;
    bool operator<(const Value& other) const {
      return most != other.most ? most < other.most : squares < other.squares;
    }
  };

  Value Of(const Partition& partition) {
    around_.assign(static_cast<size_t>(frame_.ranks), kUnreached);
    work_.assign(static_cast<size_t>(frame_.ranks), 0);
    int first = 0;
    for (int s = 0; s < frame_.stages; ++s) {
      const int last = first + partition[static_cast<size_t>(s)];
      for (size_t route = 0; route < frame_.routes.size(); ++route) {
        if (frame_.routes[route].microbatches.empty()) continue;
        const auto rank = static_cast<size_t>(frame_.routes[route].ranks[static_cast<size_t>(s)]);
        around_[rank] = std::min(around_[rank], Around(route, s, first));
        work_[rank] += Work(route, rank, first, last);
      }
      first = last;
    }
    Value value;
    for (size_t r = 0; r < work_.size(); ++r) {
      if (around_[r] == kUnreached) continue;
      const Time here = around_[r] + work_[r];
      if (here > value.most) value.busiest = static_cast<int>(r);
      value.most = std::max(value.most, here);
      value.squares += static_cast<double>(here) * static_cast<double>(here);
    }
    return value;
  }

 private:
  Time Around(size_t route, int s, int first) const {
    return layers_.forward_before(first) + layers_.backward_before(first) +
           2 * hops_[route][static_cast<size_t>(s)];
  }

  /// Work of all micro-batches of a route with these layers.
  Time Work(size_t route, size_t rank, int first, int last) const {
    const auto count = static_cast<Time>(frame_.routes[route].microbatches.size());
    const Time work = count * (layers_.work_before(last) - layers_.work_before(first));
    const double speed = speeds_[rank];
    return speed == 1 ? work : static_cast<Time>(static_cast<double>(work) / speed);
  }

  const LayerStages& layers_;
  const Plan& frame_;
  const Time hop_;
  std::vector<double> speeds_;           // by rank
  std::vector<std::vector<Time>> hops_;  // of each route: of the messages to each stage
  std::vector<Time> around_, work_;      // by rank
};

/// The partition whose largest OfStage is least: of the ways to put the first j layers into the
/// first s stages the best, one stage after the other.
Partition BestBottleneck(const Balance& balance, int layers, int stages) {
  const auto at = [layers](int s, int j) {
    return static_cast<size_t>(s) * static_cast<size_t>(layers + 1) + static_cast<size_t>(j);
  };
  std::vector<Time> least(at(stages, layers) + 1, kUnreached);
  std::vector<int> from(least.size(), 0);
  least[at(0, 0)] = 0;
  for (int s = 0; s < stages; ++s) {
    for (int j = s + 1; j <= layers - (stages - s - 1); ++j) {
      for (int i = s; i < j; ++i) {
        if (least[at(s, i)] == kUnreached) continue;
        const Time value = std::max(least[at(s, i)], balance.OfStage(0, s, i, j));
        if (value >= least[at(s + 1, j)]) continue;
        least[at(s + 1, j)] = value;
        from[at(s + 1, j)] = i;
      }
    }
  }
  Partition partition(static_cast<size_t>(stages));
  for (int s = stages, j = layers; s > 0; --s) {
    partition[static_cast<size_t>(s) - 1] = j - from[at(s, j)];
    j = from[at(s, j)];
  }
  return partition;
}

/// Takes single layers from the busiest rank, each to where that helps most.
Partition TakeFromBusiest(Balance* balance, const Plan& frame, Partition partition) {
  Balance::Value now = balance->Of(partition);
  for (;;) {
    std::optional<Partition> best;
    Balance::Value least = now;
    for (const Route& route : frame.routes) {
      for (size_t from = 0; from < partition.size(); ++from) {
        if (route.ranks[from] != now.busiest || partition[from] < 2) continue;
        for (size_t to = 0; to < partition.size(); ++to) {
          if (to == from) continue;
          Partition moved = partition;
          --moved[from];
          ++moved[to];
          const Balance::Value value = balance->Of(moved);
          if (!(value < least)) continue;
          least = value;
          best = std::move(moved);
        }
      }
    }
    if (!best) return partition;
    partition = std::move(*best);
    now = least;
  }
}

}  // namespace

std::vector<Partition> StartingPartitions(const LayerStages& layers, const Plan& frame,
                                          const CostModel& costs) {
  const int count = layers.layers(), stages = frame.stages;
  CF_ASSERT(count >= stages);
  Balance balance(layers, frame, costs);
  const bool single = frame.routes.size() == 1 && stages == frame.ranks;
  std::vector<Partition> starts;
  const auto add = [&](Partition partition) {
    if (std::ranges::count(starts, partition) == 0) starts.push_back(std::move(partition));
  };
  const bool exact = int64_t{stages} * count * count <= kMostSteps;
  if (!single) add(TakeFromBusiest(&balance, frame, EvenPartition(count, stages)));
  if (exact) add(BestBottleneck(balance, count, stages));
  add(EvenPartition(count, stages));
  return starts;
}

PartitionWorth JudgeOnce(KnownWorths* known, const Partition& partition,
                         const PartitionJudge& judge) {
  const auto [at, added] = known->try_emplace(partition);
  if (added) at->second = judge(partition);
  return at->second;
}

Partition ImprovePartition(Partition partition, const PartitionJudge& judge, int64_t most,
                           const PartitionJudge& least) {
  PartitionWorth worth = judge(partition);
  --most;
  // A layer goes over one end of a stage or, where that alone is worse, through others.
  const auto stages = static_cast<int>(partition.size());
  // Neighbours first, then the few stages near opposite ends of the model.
  std::vector<int> distances;
  for (int far = 1; far < stages; ++far) {
    distances.push_back(far % 2 == 1 ? (far + 1) / 2 : stages - far / 2);
  }
  for (bool better = true; better;) {
    better = false;
    for (const int far : distances) {
      if (better) break;
      for (int s = 0; s + far < stages; ++s) {
        for (const int step : {1, -1}) {
          const auto from = static_cast<size_t>(step > 0 ? s + far : s);
          const auto to = static_cast<size_t>(step > 0 ? s : s + far);
          // Again while it helps: where many layers must move, one alone may do little.
          while (partition[from] > 1) {
            if (most-- <= 0) return partition;
            Partition moved = partition;
            --moved[from];
            ++moved[to];
            if (least) {
              if (least(moved) >= worth) break;
              most -= kLeastEach;
            }
            const PartitionWorth then = judge(moved);
            if (then >= worth) break;
            worth = then;
            partition = std::move(moved);
            better = true;
          }
        }
      }
    }
  }
  return partition;
}

}  // namespace contraflow
