// From layers to a plan. A published schedule fixes how many stages there are and where they live:
// a balanced partition comes first, then layers move as long as the simulated step of the
// schedule's own order gets shorter. `auto` tries placements and depths (shape_search.cc).

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/memory.h"
#include "schedules/made_plans.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/roomiest.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"
#include "schedules/search_control.h"

namespace contraflow {
namespace {

/// Part of what a partition is judged, for that of the one which needs least memory.
constexpr int64_t kRoomiestShare = 8;
/// Likewise, to look for the one whose fullest rank holds least.
constexpr int kLightestShare = 4;
/// Ways that the depth of an interleaved placement is tried.
constexpr int kDepths[] = {2, 3, 4, 5, 6, 8};
/// And of a wave. Even ones end where they began; three depths take longer than they gain.
constexpr int kWaves[] = {4, 8};

void RequirePartition(const Schedule& schedule, const Spec& spec, int stages) {
  const std::string why_not = RejectPartition(spec.costs, ChoiceOf(spec), stages);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
}

Partition PartitionOf(const Schedule& schedule, const Spec& spec, const Plan& frame,
                      LayerStages* layers) {
  const int stages = schedule.stages(spec);
  if (std::optional<Partition> fixed = FixedPartition(spec, stages)) return *fixed;
  std::optional<Plan> order;
  const auto worth = [&](const Partition& partition, bool components) {
    const Spec staged = components ? Staged(spec, frame, layers, partition)
                                   : StagedChunks(spec, frame, layers, partition);
    // With what these stages hold there may be no room for any order.
    if (!schedule.reject(staged).empty()) return kImpossible;
    if (!order || schedule.heeds_costs) order = schedule.generate(staged);
    PartitionWorth result = WorthOf(*order, staged);
    if (components) {
      result.step = StepTime(*order, staged.costs, staged.memory_limit, staged.search);
    }
    return result;
  };
  const auto judge = [&](const Partition& partition) { return worth(partition, false); };
  std::vector<Partition> starts = StartingPartitions(*layers, frame, spec.costs);
  // Only the partition of the bound is wanted.
  Spec quick = spec;
  quick.search.budget = 0;
  // The order of the schedule says what it holds.
  const Partition balanced = BalancedPartition(quick, layers, frame, judge(starts.front()).step);
  if (!balanced.empty() && std::ranges::count(starts, balanced) == 0) starts.push_back(balanced);
  const PartitionJudge last = [&](const Partition& partition) {
    return worth(partition, spec.search.components);
  };
  const PartitionChoice choice = ChoiceOf(spec);
  Partition best = choice.layers.empty() ? BestFrom(starts, judge, MostJudged(spec, stages), last)
                                         : choice.layers;
  const PartitionWorth found = judge(best);
  if (!CountsBytes(spec.costs)) return best;
  if (found.excess <= 0) {
    const bool plain = spec.recompute.choice == Recompute::Choice::kNone &&
                       spec.offload.choice == Offload::Choice::kNone;
    if (!plain || !order) return best;
    const auto most = [&](Time step) {
      return static_cast<Time>(static_cast<double>(step) * choice.longer);
    };
    // In place of the excess, the bytes of the fullest rank.
    const PartitionJudge held = [&](const Partition& partition) {
      PartitionWorth result = judge(partition);
      if (result.excess > 0 || result.step > most(found.step)) return kImpossible;
      const CostModel costs = StagedChunks(spec, frame, layers, partition).costs;
      result.excess = std::ranges::max(TotalOfRanks(*order, costs));
      return result;
    };
    starts.push_back(best);
    Partition lightest = BestFrom(starts, held, MostJudged(spec, stages) / kLightestShare, held);
    return last(lightest).step <= most(last(best).step) ? lightest : best;
  }
  Partition roomiest = RoomiestPartition(spec, frame, layers).partition;
  if (judge(roomiest) >= found) return best;
  return ImprovePartition(std::move(roomiest), judge, MostJudged(spec, stages) / kRoomiestShare);
}

Plan FromPublished(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
  RequirePartition(schedule, spec, schedule.stages(spec));
  const Plan frame = FrameOf(schedule, spec);
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  CheckStages(spec, &layers, schedule.stages(spec));
  PlanChoice choice(spec);
  const auto offer = [&](const Spec& one, const Partition& partition) {
    return choice.Offer([&] {
      const Spec staged = Staged(one, frame, &layers, partition);
      CheckBytes(staged.costs);
      Plan plan = GeneratePlan(staged, control);
      plan.costs = staged.costs;
      return plan;
    });
  };
  // A plan that fits as it is may have another partition than one that is recomputed or goes to the
  // host, and the latter is chosen when no order is known.
  const std::vector<Spec> ways = WithoutAndWith(spec);
  std::vector<Partition> partitions;
  bool possible = true;  // as asked for, which comes last
  for (const Spec& one : ways) {
    partitions.push_back(PartitionOf(schedule, one, frame, &layers));
    possible = offer(one, partitions.back());
  }
  const bool buys = spec.recompute.choice != Recompute::Choice::kNone ||
                    spec.offload.choice != Offload::Choice::kNone;
  if (buys && !FixedPartition(spec, frame.stages)) {
    const Partition& last = partitions.back();
    const Partition even = EvenPartition(layers.layers(), frame.stages);
    if (ways.size() == 1) {
      // A partition is not judged with what runs again, so one that ignores it, and one for which
      // nothing needs to, may do better.
      Spec plain = spec;
      plain.recompute = {};
      plain.offload = {};
      std::vector<Partition> tried = {last, even};
      for (const bool limited : {true, false}) {
        if (!limited) {
          plain.memory_limit.reset();
          plain.device_memory.reset();
        }
        const Partition without = PartitionOf(schedule, plain, frame, &layers);
        if (std::ranges::count(tried, without) > 0) continue;
        possible |= offer(spec, without);
        tried.push_back(without);
      }
    } else if (last != partitions.front() && choice.fits()) {
      offer(ways.front(), last);
    }
    if (even != last) possible |= offer(spec, even);
  } else if (spec.search.components && !FixedPartition(spec, frame.stages)) {
    // Partitions are judged as chunks first.
    const Partition even = EvenPartition(layers.layers(), frame.stages);
    if (even != partitions.back()) offer(spec, even);
  }
  if (spec.recompute.choice == Recompute::Choice::kAuto && !choice.fits()) {
    // The least memory of all, on a partition of its own.
    Spec full = spec;
    full.recompute = {.choice = Recompute::Choice::kFull};
    choice.Offer([&] { return FromPublished(schedule, full, control); });
  }
  return choice.Take(possible);
}

/// A placement and depth to search, simplest first.
struct Shape {
  Placement placement;
  int chunks = 1;
};

std::vector<Shape> ShapesOf(const Spec& spec) {
  const Placement asked = spec.search.placement;
  const int deepest = spec.costs.LayerCount() / spec.ranks;
  std::vector<Shape> shapes;
  const auto offer = [&](Placement placement, int chunks) {
    if (!Allows(asked, placement)) return;
    if (chunks > deepest || (IsChoice(asked) && chunks > 1 && spec.ranks == 1)) return;
    if (placement == Placement::kBidirectional &&
        (spec.microbatches < 2 || (IsChoice(asked) && spec.ranks == 1))) {
      return;
    }
    const int64_t stages = int64_t{chunks} * spec.ranks;
    if (stages > kMaxStages || stages * spec.microbatches > kMaxCells) return;
    const PartitionChoice choice = ChoiceOf(spec);
    if (choice.kind == PartitionChoice::Kind::kList &&
        !RejectPartition(spec.costs, choice, static_cast<int>(stages)).empty()) {
      return;
    }
    shapes.push_back({placement, chunks});
  };
  offer(Placement::kLinear, 1);
  offer(Placement::kV, 2);
  if (spec.chunks > 0) {
    offer(Placement::kInterleaved, spec.chunks);
  } else {
    for (const int chunks : kDepths) offer(Placement::kInterleaved, chunks);
  }
  if (spec.chunks > 2) {
    offer(Placement::kWave, spec.chunks);
  } else if (spec.chunks == 0) {
    for (const int chunks : kWaves) offer(Placement::kWave, chunks);
  }
  offer(Placement::kBidirectional, 1);
  return shapes;
}

/// The spec of a shape, still with its layers.
Spec OfShape(const Spec& spec, const Shape& shape) {
  Spec of = spec;
  of.search.placement = shape.placement;
  of.chunks = shape.chunks;
  of.memory_limit = LimitFor(spec, spec.ranks * shape.chunks);
  return of;
}

/// Throws Error if the costs do not say what recompute and offloading of the spec need to know.
void CheckBought(const Spec& spec, const SearchControl& control) {
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  Spec even = spec;
  even.costs = ChunkCosts(spec, &layers, EvenPartition(layers.layers(), spec.ranks));
  if (spec.recompute.choice != Recompute::Choice::kNone) CheckRecomputeLimit(even);
  CheckHostCost(even.costs, spec.offload.choice != Offload::Choice::kNone);
}

/// True where no order of any partition takes less than `step`.
bool Proves(const Spec& of, const SearchControl& control, Time step) {
  if (of.search.components) return false;
  LayerStages& layers = control.made->StagesOf(of.costs, OverlapOf(of));
  Spec even = of;
  even.costs = ChunkCosts(of, &layers, EvenPartition(layers.layers(), of.ranks * of.chunks));
  const std::vector<Candidate> candidates = CandidatesOf(even);
  return !candidates.empty() &&
         BoundOfPartitions(of, &layers, candidates.front().frame, step).value >= step;
}

/// Share of the budget for a search without recompute or offloading at first, and all of it unless
/// its step is longer than the shortest by more than this percentage of it.
constexpr int64_t kFirstWithout = 4, kHopeless = 10;

/// Shapes, in each way to use what a spec leaves open: partitions are chosen for what is recomputed
/// or goes to the host, so that what is searched without may be shorter.
class WaySearch {
 public:
  WaySearch(const Spec& spec, const std::vector<Shape>& shapes, const SearchControl& control)
      : spec_(spec), shapes_(shapes), control_(control), choice_(spec) {}

  /// The step of what is found, if it fits.
  std::optional<Time> Try(Spec way, int64_t budget) {
    if (shortest_ && control_.stopped()) return std::nullopt;
    way.search.budget = budget;
    std::vector<Spec> specs;
    for (const Shape& shape : shapes_) {
      Spec of = OfShape(way, shape);
      if (!shortest_ || !Proves(of, control_, *shortest_)) specs.push_back(std::move(of));
    }
    if (specs.empty()) return std::nullopt;
    std::optional<Time> step;
    choice_.Offer([&] {
      FoundPlan found = SearchShapes(specs, control_);
      if (FitsMemory(found.plan, *found.plan.costs, spec_)) {
        step = found.step;
        shortest_ = std::min(found.step, shortest_.value_or(found.step));
      }
      return std::move(found.plan);
    });
    return step;
  }

  /// Shortest of those that fit; there must be one.
  Time shortest() const { return *shortest_; }

  /// Throws the Error of the last way where there is no plan.
  Plan Take() {
    Plan plan = choice_.Take();
    plan.provenance->budget = spec_.search.budget;
    return plan;
  }

 private:
  const Spec& spec_;
  const std::vector<Shape>& shapes_;
  const SearchControl& control_;
  PlanChoice choice_;
  std::optional<Time> shortest_;
};

Plan Searched(const Spec& spec, const SearchControl& control) {
  const std::vector<Shape> shapes = ShapesOf(spec);
  if (shapes.empty()) {
    RequirePartition(kAuto, spec, spec.ranks);
    if (spec.search.placement == Placement::kWave && spec.chunks > 0) {
      if (const std::string why = RejectWave(spec.chunks); !why.empty()) {
        throw Error("auto " + why);
      }
    }
    throw Error("auto has no such placement of " + std::to_string(spec.costs.LayerCount()) +
                " layers on " + std::to_string(spec.ranks) +
                " ranks; give another `placement` or `chunks`");
  }
  CheckBought(spec, control);
  std::vector<Spec> ways = WithoutAndWith(spec);
  // Without a memory limit, nothing needs to be recomputed or to go to the host.
  if (!spec.memory_limit && DevicesOf(spec).empty()) ways.resize(1);
  WaySearch search(spec, shapes, control);
  std::vector<std::pair<const Spec*, Time>> again;
  for (size_t i = 0; i + 1 < ways.size(); ++i) {
    const std::optional<Time> step = search.Try(ways[i], spec.search.budget / kFirstWithout);
    if (step) again.emplace_back(&ways[i], *step);
  }
  search.Try(ways.back(), spec.search.budget);
  for (const auto& [way, step] : again) {
    if (step / 100 * (100 - kHopeless) <= search.shortest()) search.Try(*way, spec.search.budget);
  }
  return search.Take();
}

}  // namespace

Plan GenerateFromLayers(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  return &schedule == &kAuto ? Searched(spec, control) : FromPublished(schedule, spec, control);
}

void CheckDevicesForLayers(const Spec& spec, const SearchControl& control) {
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (devices.empty()) return;
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  const CostModel whole = layers.Make({layers.layers()});
  if (!whole.memory) return;
  const MemoryCost& memory = *whole.memory;
  int64_t least = (spec.ranks - 1) * memory.workspace_bytes -
                  RoomForActivations(SingleRank(spec), whole, {0}).front();
  const bool bought = spec.recompute.choice != Recompute::Choice::kNone ||
                      spec.offload.choice != Offload::Choice::kNone;
  if (!bought) least += memory.activation(0);
  const int64_t room = std::accumulate(devices.begin(), devices.end(), int64_t{0});
  if (least <= room) return;
  throw Error("auto does not fit `device_memory`: the layers hold " + FormatCount(least) +
              " bytes" + (bought ? "" : " with one micro-batch") + ", all devices have " +
              FormatCount(room) + "; " + DeviceAdvice(spec));
}

void CoverPartitions(const Spec& spec, const SearchControl& control, Plan* plan) {
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  Provenance& provenance = *plan->provenance;
  provenance.bound = std::min(provenance.bound,
                              BoundOfPartitions(spec, &layers, *plan, provenance.makespan).value);
}

}  // namespace contraflow
