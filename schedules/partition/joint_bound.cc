// Bounds that hold for any partition.
//
// One stage a rank, one route. The bound of rank r depends on its own layers i..j-1 alone: the
// layers before them are its head and tail, the ones after them its lag, however they are divided,
// with r messages each way before it and P-1-r after it. So with B(r, i, j) from ProveStageBound
//
//     makespan >= min over i_1 < .. < i_(P-1) of max over r of B(r, i_r, i_(r+1)),
//
// which a dynamic programme over the ends of stages finds exactly. Segments with B >= `enough` are
// of no interest: from each start only lengths up to the first whose work alone takes `enough`, and
// only starts that leave the ranks to come no more than they can do in that time. If `enough` is
// much, the programme first looks for a partition a little above what work alone takes.
//
// Two stages a rank: pair_bound.cc; more of them: deep_bound.cc. Otherwise all ranks together do
// the work of all layers for all micro-batches, and none begins before its head: a stage s has s
// stages before it with a layer each, at least. So
//
//     P * makespan >= sum of heads + M * sum of work.
//
// If ranks differ in speed, each rank's own work takes that longer, the work of others before and
// after it no less than on the fastest, and work is divided by the sum of all speeds.
//
// The work of a layer is the time for which the compute lane is busy with it (layer_work.h).

#include "schedules/partition/joint_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "schedules/partition/pairing.h"
#include "schedules/partition/staged.h"
#include "schedules/search/portfolio.h"

namespace contraflow {

Time LeastHop(const CostModel& costs) {
  const CommCost& comm = costs.comm;
  if (!comm.exclusive()) return comm.latency;
  int64_t bytes = comm.bytes;
  for (const LayerCost& layer : costs.layers) {
    if (layer.output_bytes > 0) bytes = std::min(bytes, layer.output_bytes);
  }
  const double occupied =
      static_cast<double>(bytes) / comm.bandwidth * static_cast<double>(TicksPerUnit(costs.unit));
  return comm.latency + std::min(comm.occupancy, static_cast<Time>(occupied));
}

Time LeastWorkOf(const StageCost& cost) {
  const Time full = std::min(cost.bw, cost.b + cost.w);
  return cost.f + full - std::clamp<Time>(cost.f + cost.bw - cost.fb, 0, full);
}

double SpeedOf(const Spec& spec, int rank) {
  return spec.costs.ranks.empty() ? 1 : spec.costs.ranks[static_cast<size_t>(rank)].speed;
}

double Fastest(const Spec& spec) {
  double fastest = 0;
  for (int r = 0; r < spec.ranks; ++r) fastest = std::max(fastest, SpeedOf(spec, r));
  return fastest;
}

Time AtLeast(Time work, double speed, int64_t durations) {
  if (speed == 1) return work;
  const double time = static_cast<double>(work) / speed * (1 - 1e-12);
  return std::max<Time>(0, static_cast<Time>(time) - durations);
}

std::optional<Time> MostForwardsHeld(const Spec& spec, const LayerStages& layers) {
  const bool bought = HoldsLess(spec);
  if (!spec.memory_limit || bought || !CountsBytes(spec.costs)) return std::nullopt;
  // The longest forwards for their bytes first, the last of them in part.
  std::vector<std::pair<double, double>> held;  // of all micro-batches: time, bytes
  const double count = spec.microbatches;
  for (int i = 0; i < layers.layers(); ++i) {
    const Time forward = layers.forward_before(i + 1) - layers.forward_before(i);
    if (forward == 0) continue;
    const LayerCost& layer = spec.costs.layers[static_cast<size_t>(layers.kind(i))];
    held.emplace_back(count * static_cast<double>(forward),
                      count * static_cast<double>(layer.activation_bytes));
  }
  std::ranges::sort(
      held, [](const auto& a, const auto& b) { return a.first * b.second > b.first * a.second; });
  double room = static_cast<double>(*spec.memory_limit), sum = 0;
  for (const auto& [time, bytes] : held) {
    const double part = bytes > room ? room / bytes : 1;
    sum += part * time;
    room -= part * bytes;
  }
  return static_cast<Time>(sum * (1 + 1e-12)) + 1;
}

namespace {

constexpr Time kNoSuch = std::numeric_limits<Time>::max();
/// Instructions that are evaluated in the time of an entry of BoundOfPairs, about.
constexpr int64_t kWorkOfEntry = 10;
/// Entries up to which that bound is worth its memory.
constexpr int64_t kMostEntries = 2'000'000;
/// Work of a bound of which only the partition is wanted.
constexpr int64_t kWorkOfBalanced = 1'000'000;

/// True for one stage a rank, of one route.
bool OneStageEach(const Plan& frame) {
  return frame.routes.size() == 1 && frame.stages == frame.ranks;
}

/// How many micro-batches of scale 1 take as long as all.
double ScaleOfAll(const Spec& spec) {
  const std::vector<double>& scale = spec.costs.microbatch_scale;
  return scale.empty() ? spec.microbatches : std::accumulate(scale.begin(), scale.end(), 0.0);
}

class LinearBound {
 public:
  LinearBound(const Spec& spec, LayerStages* layers, const LayerWork& work, Time enough)
      : spec_(spec),
        layers_(*layers),
        work_(work),
        all_(std::min(enough, kNoSuch / 4)),
        hop_(LeastHop(spec.costs)),
        scale_(ScaleOfAll(spec)),
        devices_(DevicesOf(spec)),
        alone_(SingleRank(spec)) {}

  PartitionBound Find() {
    const Time work = LeastByWork();
    for (Time longer = work / 8 + 1;; longer *= 2) {
      PartitionBound bound = Below(std::min(all_, work + longer));
      if (!bound.partition.empty() || enough_ == all_) return bound;
    }
  }

 private:
  /// The same, no more than `enough`.
  PartitionBound Below(Time enough) {
    enough_ = enough;
    const int count = layers_.layers(), ranks = spec_.ranks;
    const std::vector<int> earliest = EarliestStarts();
    std::vector<Time> least(static_cast<size_t>(count) + 1, kNoSuch);
    least[0] = 0;
    std::vector<std::vector<int>> from;  // of each rank, by the end of its layers: where they begin
    for (int r = 0, furthest = 0; r < ranks; ++r) {
      std::vector<Time> next(least.size(), kNoSuch);
      std::vector<int>& origin = from.emplace_back(least.size(), -1);
      const int first = earliest[static_cast<size_t>(r)], last = count - (ranks - r - 1);
      const int until = std::exchange(furthest, 0);
      for (int i = first; i <= until && i < last; ++i) {
        const Time before = least[static_cast<size_t>(i)];
        if (before >= enough_) continue;
        const int shortest = std::max(i + 1, earliest[static_cast<size_t>(r) + 1]);
        // More layers are more work.
        for (int j = shortest; j <= last && Work(r, i, j) < enough_; ++j) {
          Time& best = next[static_cast<size_t>(j)];
          if (before >= best) continue;
          const Time most = std::min(best, enough_);
          const Time value = std::max(before, OfSegment(r, i, j, most));
          if (value >= most) continue;
          best = value;
          origin[static_cast<size_t>(j)] = i;
          furthest = std::max(furthest, j);
        }
      }
      least = std::move(next);
    }
    PartitionBound bound = {enough_, {}};
    if (least.back() >= enough_) return bound;
    bound.value = least.back();
    for (size_t r = from.size(), end = static_cast<size_t>(count); r-- > 0;) {
      const int begin = from[r][end];
      bound.partition.push_back(static_cast<int>(end) - begin);
      end = static_cast<size_t>(begin);
    }
    std::ranges::reverse(bound.partition);
    return bound;
  }

  /// The least time, of no more than `enough`, in which the ranks can do all work.
  Time LeastByWork() {
    Time low = 0, high = all_;
    while (low < high) {
      enough_ = low + (high - low) / 2;
      if (EarliestStarts().front() > 0) {
        low = enough_ + 1;
      } else {
        high = enough_;
      }
    }
    return low;
  }

  /// The first layer that each rank may begin with, so that it and those after it can do what is
  /// left in less than `enough`; after the last rank the end of the model.
  std::vector<int> EarliestStarts() const {
    std::vector<int> starts(static_cast<size_t>(spec_.ranks) + 1, layers_.layers());
    for (int r = spec_.ranks - 1; r >= 0; --r) {
      const int end = starts[static_cast<size_t>(r) + 1];
      int start = end;
      while (start > r && Work(r, start - 1, end) < enough_) --start;
      starts[static_cast<size_t>(r)] = start;
    }
    return starts;
  }

  Time Work(int r, int i, int j) const {
    Time work = spec_.microbatches * work_.between(i, j);
    if (!spec_.costs.microbatch_scale.empty()) {
      // Rounded durations may be half a tick shorter each.
      const double sum = static_cast<double>(work_.between(i, j)) * scale_ * (1 - 1e-12);
      work = std::max<Time>(0, static_cast<Time>(sum) - 4 * spec_.microbatches);
    }
    return AtLeast(work, SpeedOf(spec_, r), 3 * spec_.microbatches);
  }

  /// Bound of rank r with the layers i..j-1; `most` where it is no less than that.
  Time OfSegment(int r, int i, int j, Time most) {
    StageSurroundings around;
    // If micro-batches differ, the times around one of them depend on which it is.
    if (spec_.costs.microbatch_scale.empty()) {
      const int count = layers_.layers(), behind = spec_.ranks - 1 - r;
      const double fastest = Fastest(spec_);
      around.head = AtLeast(layers_.forward_before(i), fastest, r) + r * hop_;
      around.tail = AtLeast(layers_.backward_before(i), fastest, r) + r * hop_;
      around.lag =
          AtLeast(layers_.forward_before(count) - layers_.forward_before(j), fastest, behind) +
          AtLeast(layers_.backward_before(count) - layers_.backward_before(j), fastest, behind) +
          2 * behind * hop_;
    }
    if (around.head + Work(r, i, j) >= most) return most;
    CostModel stage = layers_.Segment(i, j);
    if (!spec_.costs.ranks.empty()) {
      stage.ranks = {spec_.costs.ranks[static_cast<size_t>(r)]};
      stage = OnRanks(stage, alone_);
    }
    std::optional<int64_t> limit = spec_.memory_limit;
    if (!devices_.empty() && stage.memory) {
      const int64_t device = devices_[static_cast<size_t>(r)];
      const int64_t room = RoomForActivations(alone_, stage, {device}).front();
      limit = std::max<int64_t>(1, std::min(limit.value_or(room), room));
    }
    const bool bought = HoldsLess(spec_);
    if (bought) limit.reset();
    try {
      return ProveStageBound(stage, spec_.microbatches, around, limit).value;
    } catch (const Error&) {
      return most;  // one activation does not fit: no such stage
    }
  }

  const Spec& spec_;
  LayerStages& layers_;
  const LayerWork& work_;
  const Time all_;
  Time enough_ = 0;  ///< beyond which segments are of no interest for now
  const Time hop_;
  const double scale_;
  const std::vector<int64_t> devices_;
  const Plan alone_;
};

/// Work of BoundOfPairs; nothing where it would take more than `most`.
std::optional<int64_t> WorkOfPairs(const Plan& frame, int layers, int64_t most) {
  const std::optional<Pairing> pairing = PairingOf(frame);
  if (!pairing) return std::nullopt;
  const int64_t entries = pairing->Entries(layers);
  if (entries > std::min(kMostEntries, most / kWorkOfEntry)) return std::nullopt;
  return kWorkOfEntry * entries;
}

/// Time that no stage takes for a micro-batch in a step shorter than `enough`; 0 where
/// micro-batches differ.
Time MostOfStage(const Spec& spec, const Plan& frame, Time enough) {
  if (!spec.costs.microbatch_scale.empty()) return 0;
  size_t most = 1;
  for (const Route& route : frame.routes) most = std::max(most, route.microbatches.size());
  // Rounded durations may be half a tick shorter each.
  const double time = static_cast<double>(enough) / static_cast<double>(most) + 4;
  return static_cast<Time>(time * Fastest(spec) * (1 + 1e-9)) + 1;
}

/// Bound by the work of all ranks together.
Time AverageBound(const Spec& spec, const LayerStages& layers, const LayerWork& work,
                  const Plan& frame) {
  const Time hop = LeastHop(spec.costs);
  std::vector<Time> heads(static_cast<size_t>(frame.ranks), kNoSuch);
  for (const Route& route : frame.routes) {
    if (route.microbatches.empty()) continue;
    Time hops = 0;
    for (int s = 0; s < frame.stages; ++s) {
      const auto at = static_cast<size_t>(s);
      if (s > 0 && route.ranks[at] != route.ranks[at - 1]) hops += hop;
      Time& head = heads[static_cast<size_t>(route.ranks[at])];
      const bool scaled = !spec.costs.microbatch_scale.empty();
      head =
          std::min(head, scaled ? 0 : AtLeast(layers.forward_before(s), Fastest(spec), s) + hops);
    }
  }
  // Rounded durations may be half a tick shorter each.
  const double fastest = Fastest(spec);
  const bool exact = spec.costs.microbatch_scale.empty() && spec.costs.ranks.empty();
  const double rounded = exact ? 0 : 4.0 * fastest * frame.microbatches * frame.stages;
  double sum = static_cast<double>(work.before(layers.layers())) * ScaleOfAll(spec) - rounded;
  double speeds = 0;
  for (int r = 0; r < frame.ranks; ++r) {
    const Time head = heads[static_cast<size_t>(r)];
    speeds += SpeedOf(spec, r);
    if (head != kNoSuch) sum += SpeedOf(spec, r) * static_cast<double>(head);
  }
  return static_cast<Time>(std::max(0.0, sum / speeds * (1 - 1e-12)));
}

}  // namespace

PartitionBound BoundOfPartitions(const Spec& spec, LayerStages* layers, const Plan& frame,
                                 Time enough, int64_t most) {
  LayerWork work(layers, MostOfStage(spec, frame, enough));
  const Time average = std::min(AverageBound(spec, *layers, work, frame), enough);
  std::optional<PartitionBound> exact;
  if (OneStageEach(frame)) {
    exact = LinearBound(spec, layers, work, enough).Find();
  } else if (WorkOfPairs(frame, layers->layers(), most)) {
    exact = BoundOfPairs(spec, layers, &work, frame, average, enough);
  }
  if (!exact && average < enough) exact = BoundOfDeep(spec, *layers, &work, frame, enough);
  if (!exact) return {average, {}};
  exact->value = std::max(exact->value, average);
  return *exact;
}

int64_t WorkOfBound(const Plan& frame, int layers, int64_t most) {
  const std::optional<int64_t> pairs = WorkOfPairs(frame, layers, most);
  return pairs ? *pairs : int64_t{layers} * layers * frame.stages;
}

Partition BalancedPartition(const Spec& spec, LayerStages* layers, const Plan& frame, Time enough) {
  Spec of = spec;
  if (!OneStageEach(frame)) of.memory_limit.reset();
  return BoundOfPartitions(of, layers, frame, enough, kWorkOfBalanced).partition;
}

}  // namespace contraflow
