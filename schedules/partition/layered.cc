// From layers to a plan. A published schedule fixes how many stages there are and where they live;
// `auto` tries placements and depths. For each, a balanced partition comes first; then layers move
// as long as the simulated step of the schedule's own order gets shorter. For `auto` an order is
// searched for that partition, layers move under this order, and it is searched again for the
// stages that come of it.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/partition/partition.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Instructions that may be simulated to improve one partition, about.
constexpr int64_t kMostSimulated = 8'000'000;
/// Ways that the depth of an interleaved placement is tried.
constexpr int kDepths[] = {2, 3, 4, 6, 8};
/// And of a wave. Even ones end where they began; three depths take longer than they gain.
constexpr int kWaves[] = {4, 8};

/// Of a search, in nanoseconds, with which partitions are judged as often as they can be; with less
/// they are judged less often, but so many times at least.
constexpr double kWholeBudget = 1e9;
constexpr int64_t kFewestJudged = 40;
/// Bounds of partitions that are proven to choose what is searched, at most.
constexpr int64_t kMostBounds = 300;
/// Partitions that are searched at all, how many of them may spend what they have for that without
/// an end that is proven, and what share of the budget that is.
constexpr size_t kMostTried = 24;
constexpr int kMostUnproven = 4;
constexpr int64_t kShortShare = 16;
/// Of those the ones that are searched again, each with so many such shares.
constexpr size_t kMostAgain = 2;
constexpr int64_t kSharesAgain = 2;

constexpr PartitionWorth kImpossible = {INT64_MAX, 0, 0};

Overlap OverlapOf(const Spec& spec) { return spec.costs.derived.value_or(Overlap::kAll); }

PartitionChoice ChoiceOf(const Spec& spec) { return spec.partition.value_or(PartitionChoice()); }

/// The spec with the stages of a partition in place of the layers, on the ranks of the frame.
Spec Staged(const Spec& spec, const Plan& frame, LayerStages* layers, const Partition& partition) {
  Spec staged = spec;
  CostModel made = layers->Make(partition);
  if (spec.search.components) AddComponents(*layers, partition, OverlapOf(spec), &made);
  staged.costs = OnRanks(made, frame);
  staged.partition = {};
  return staged;
}

std::vector<int64_t> TotalOfRanks(const Plan& plan, const CostModel& costs) {
  std::vector<int64_t> total;
  for (const MemoryFigures& rank : MemoryOf(plan, costs)) total.push_back(rank.total());
  return total;
}

/// What each rank needs whatever is recomputed or offloaded, which is chosen later and may be what
/// makes it fit: all that is fixed, and room for one activation.
std::vector<int64_t> LeastOfRanks(const Plan& plan, const CostModel& costs) {
  std::vector<int64_t> least(static_cast<size_t>(plan.ranks), 0);
  for (const Route& route : plan.routes) {
    for (int s = 0; s < plan.stages; ++s) {
      int64_t& most = least[static_cast<size_t>(route.ranks[static_cast<size_t>(s)])];
      most = std::max(most, BytesOfCell(costs, s, false).activation);
    }
  }
  const std::vector<MemoryFigures> ranks = MemoryOf(plan, costs);
  for (size_t r = 0; r < ranks.size(); ++r) least[r] += ranks[r].fixed();
  return least;
}

PartitionWorth WorthOf(const Plan& plan, const Spec& staged) {
  const Simulation simulation = Simulate(plan, staged.costs, Keep::kFigures);
  PartitionWorth worth = {0, simulation.makespan, std::ranges::max(staged.costs.partition)};
  // Components take too long to judge each partition by them.
  if (HasEpilogue(staged.costs)) {
    worth.step = StepTime(plan, staged.costs, staged.memory_limit, {});
  }
  const bool plain = staged.recompute.choice == Recompute::Choice::kNone &&
                     staged.offload.choice == Offload::Choice::kNone;
  if (const std::vector<int64_t> devices = DevicesOf(staged); !devices.empty()) {
    const std::vector<int64_t> least =
        plain ? TotalOfRanks(plan, staged.costs) : LeastOfRanks(plan, staged.costs);
    for (size_t r = 0; r < devices.size(); ++r) {
      worth.excess = std::max(worth.excess, least[r] - devices[r]);
    }
  }
  if (!staged.memory_limit || !plain) return worth;
  const MemoryLimit limit(staged.costs, staged.memory_limit);
  for (const RankFigures& rank : simulation.ranks) {
    worth.excess = std::max(worth.excess, limit.Peak(rank) - *staged.memory_limit);
  }
  return worth;
}

int64_t MostJudged(const Spec& spec, int stages) {
  int64_t instructions = int64_t{3} * stages * spec.microbatches;
  // What is recomputed is chosen for each again.
  if (spec.recompute.choice != Recompute::Choice::kNone) instructions *= 2;
  return std::max<int64_t>(1, kMostSimulated / instructions);
}

void RequirePartition(const Schedule& schedule, const Spec& spec, int stages) {
  const std::string why_not = RejectPartition(spec.costs, ChoiceOf(spec), stages);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
}

/// What the spec asks for where that leaves nothing to choose.
std::optional<Partition> FixedPartition(const Spec& spec, int stages) {
  using Kind = PartitionChoice::Kind;
  const PartitionChoice choice = ChoiceOf(spec);
  if (choice.kind == Kind::kList) return choice.layers;
  const int layers = spec.costs.LayerCount();
  if (choice.kind == Kind::kEven || layers == stages) return EvenPartition(layers, stages);
  return std::nullopt;
}

/// The starts, improved by so many judgements together, and of these the best one by `last`.
Partition BestFrom(const std::vector<Partition>& starts, const PartitionJudge& judge, int64_t most,
                   const PartitionJudge& last) {
  std::optional<std::pair<PartitionWorth, Partition>> best;
  for (const Partition& start : starts) {
    Partition improved = ImprovePartition(
        start, judge, std::max<int64_t>(1, most / static_cast<int64_t>(starts.size())));
    std::pair found(last(improved), std::move(improved));
    if (!best || found.first < best->first) best = std::move(found);
  }
  return std::move(best->second);
}

Partition PartitionOf(const Schedule& schedule, const Spec& spec, const Plan& frame,
                      LayerStages* layers) {
  const int stages = schedule.stages(spec);
  if (std::optional<Partition> fixed = FixedPartition(spec, stages)) return *fixed;
  std::optional<Plan> order;
  const auto worth = [&](const Partition& partition, bool components) {
    const Spec staged = Staged(spec, frame, layers, partition);
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
  // Of the bound only its partition is wanted.
  Spec quick = spec;
  quick.search.budget = 0;
  const Partition balanced =
      BoundOfPartitions(quick, layers, frame, judge(starts.front()).step).partition;
  if (!balanced.empty() && std::ranges::count(starts, balanced) == 0) starts.push_back(balanced);
  return BestFrom(starts, judge, MostJudged(spec, stages), [&](const Partition& partition) {
    return worth(partition, spec.search.components);
  });
}

/// Throws Error if any stages made of the layers are wrong for the spec.
void CheckStages(const Spec& spec, LayerStages* layers, int stages) {
  CheckCosts(layers->Make(EvenPartition(layers->layers(), stages)), stages, spec.microbatches);
}

Plan FromPublished(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
  RequirePartition(schedule, spec, schedule.stages(spec));
  const Plan frame = FrameOf(schedule, spec);
  LayerStages layers(spec.costs, OverlapOf(spec));
  CheckStages(spec, &layers, schedule.stages(spec));
  const Spec staged = Staged(spec, frame, &layers, PartitionOf(schedule, spec, frame, &layers));
  Plan plan = GeneratePlan(staged, control);
  plan.costs = staged.costs;
  return plan;
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
  // Without bytes a limit counts activations of a rank's whole share.
  if (of.memory_limit && !CountsBytes(spec.costs))
    of.memory_limit = *of.memory_limit * shape.chunks;
  return of;
}

/// What the search has found: the plan, and how long its step takes.
struct Found {
  Plan plan;
  Time step = 0;
};

Found SearchStaged(const Spec& staged, const SearchControl& control) {
  Plan plan = GeneratePlan(staged, control);
  const Time step = StepTime(plan, staged.costs, staged.memory_limit, staged.search);
  return {std::move(plan), step};
}

/// The order of a searched plan for other stages of the same routes.
std::optional<Found> Restaged(const Found& found, const Spec& staged) {
  Plan plan = found.plan;
  plan.costs = staged.costs;
  if (!FitsMemory(plan, staged.costs, staged)) return std::nullopt;
  plan.provenance->makespan = Simulate(plan, staged.costs, Keep::kFigures).makespan;
  const Time step = StepTime(plan, staged.costs, staged.memory_limit, staged.search);
  return Found{std::move(plan), step};
}

/// The frame of a shape; the costs of its stages do not matter for it.
Plan FrameOf(const Spec& of) {
  Spec uniform = of;
  uniform.costs = UniformCosts(1, 1, 1);
  uniform.costs.stages.resize(static_cast<size_t>(of.ranks) * static_cast<size_t>(of.chunks),
                              uniform.costs.stages.front());
  uniform.memory_limit.reset();
  uniform.device_memory.reset();
  return CandidatesOf(uniform).front().frame;
}

/// A partition and a bound on any order of its stages; 0 where none is known.
struct Chance {
  Time bound = 0;
  Partition partition;
};

/// Different partitions that may do best, the most promising first: the one on which published
/// orders do best, the one that the bound for any ends with, and those with the least bounds, from
/// several starts moved by single layers.
std::vector<Chance> Promising(const Spec& of, const Plan& frame, LayerStages* layers) {
  const auto staged = [&](const Partition& partition) {
    return Staged(of, frame, layers, partition);
  };
  std::vector<std::pair<PartitionWorth, Partition>> bounded;
  const auto bound = [&](const Partition& partition) {
    const Spec spec = staged(partition);
    const std::vector<Candidate> candidates = CandidatesOf(spec);
    if (candidates.empty()) return kImpossible;
    const Candidate& candidate = candidates.front();
    PartitionWorth worth = kImpossible;
    try {
      const std::optional<int64_t> limit = candidate.spec.memory_limit;
      const bool recomputes = spec.recompute.choice != Recompute::Choice::kNone;
      if (limit && SerialPeak(frame, candidate.spec.costs, recomputes) > *limit) return kImpossible;
      const Bound proven =
          ProveBound(frame, candidate.spec.costs, recomputes ? std::nullopt : limit);
      worth = {0, proven.value, std::ranges::max(partition)};
    } catch (const Error&) {
      return kImpossible;  // no room for one activation
    }
    const auto known = [&](const auto& other) { return other.second == partition; };
    if (std::none_of(bounded.begin(), bounded.end(), known)) bounded.emplace_back(worth, partition);
    return worth;
  };
  const auto published = [&](const Partition& partition) {
    const Spec spec = staged(partition);
    const std::vector<Candidate> candidates = CandidatesOf(spec);
    if (candidates.empty()) return kImpossible;
    PartitionWorth best = kImpossible;
    for (const Plan& plan : PublishedOrders(candidates.front())) {
      best = std::min(best, WorthOf(plan, spec));
    }
    return best;
  };
  const std::vector<Partition> starts = StartingPartitions(*layers, frame, of.costs);
  // Up to four published orders each, which take longer to make than to simulate.
  const double share = std::min(1.0, static_cast<double>(of.search.budget) / kWholeBudget);
  const int64_t all = MostJudged(of, frame.stages) / 8;
  const int64_t most =
      std::max<int64_t>(kFewestJudged, static_cast<int64_t>(share * static_cast<double>(all)));
  const Partition front = BestFrom(starts, published, most, published);
  std::vector<Chance> promising = {{0, front}};
  // The best of an argument over all partitions, of those that may beat that.
  const Partition balanced = BoundOfPartitions(of, layers, frame, published(front).step).partition;
  const int64_t bounds = std::min(most, kMostBounds) / static_cast<int64_t>(starts.size() + 2);
  ImprovePartition(front, bound, bounds);
  if (!balanced.empty() && balanced != front) {
    promising.push_back({0, balanced});
    ImprovePartition(balanced, bound, bounds);
  }
  for (const Partition& start : starts) ImprovePartition(start, bound, bounds);
  std::stable_sort(bounded.begin(), bounded.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [worth, partition] : bounded) {
    if (promising.size() == kMostTried) break;
    if (partition == front || partition == balanced) continue;
    promising.push_back({worth.step, partition});
  }
  return promising;
}

/// A partition that was searched.
struct Tried {
  Time step = 0, bound = 0;
  Partition partition;
};

Found SearchShape(const Spec& of, const SearchControl& control) {
  LayerStages layers(of.costs, OverlapOf(of));
  const int stages = of.ranks * of.chunks;
  CheckStages(of, &layers, stages);
  const Plan frame = FrameOf(of);
  const Spec even = Staged(of, frame, &layers, EvenPartition(layers.layers(), stages));
  if (const std::string why_not = RejectPlacement(even); !why_not.empty()) {
    throw Error("auto " + why_not);
  }
  if (const std::optional<Partition> fixed = FixedPartition(of, frame.stages)) {
    return SearchStaged(Staged(of, frame, &layers, *fixed), control);
  }
  // A short search of each, a longer one of the few best and of what the bound for any partition
  // ends with, a long one of the best of these, and another of what moved layers make of it.
  const std::vector<Chance> promising = Promising(of, frame, &layers);
  int64_t left = of.search.budget;
  const auto search = [&](const Partition& partition, int64_t budget) {
    Spec staged = Staged(of, frame, &layers, partition);
    staged.search.budget = budget;
    Found found = SearchStaged(staged, control);
    // What is proven to be shortest has spent little.
    const Provenance& provenance = *found.plan.provenance;
    if (provenance.makespan > provenance.bound) left -= budget;
    return found;
  };
  std::optional<Found> best;
  std::optional<Error> why_not;
  Partition partition = promising.front().partition;
  std::vector<Tried> tried;
  const auto offer = [&](const Partition& of_it, Found found) {
    tried.push_back({found.step, found.plan.provenance->bound, of_it});
    if (best && found.step >= best->step) return;
    best = std::move(found);
    partition = of_it;
  };
  const int64_t share = of.search.budget / kShortShare;
  for (const auto& [bound, other] : promising) {
    if (best && (control.stopped() || of.search.budget - left >= kMostUnproven * share)) break;
    // Components may overlap from chunk to chunk, which the bound knows nothing of.
    if (best && !of.search.components && bound >= best->step) continue;
    try {
      offer(other, search(other, share));
    } catch (const Error& error) {
      if (!why_not) why_not = error;
    }
  }
  if (!best) throw *why_not;
  if (control.stopped()) return std::move(*best);
  std::ranges::stable_sort(tried, {}, &Tried::step);
  std::vector<Partition> again;
  for (size_t i = 0; i < std::min(tried.size(), kMostAgain); ++i) {
    again.push_back(tried[i].partition);
  }
  // The shorter the step, the more partitions the bound for any finds worse.
  const Partition balanced = BoundOfPartitions(of, &layers, frame, best->step).partition;
  if (!balanced.empty() && std::ranges::count(again, balanced) == 0) again.push_back(balanced);
  for (const Partition& other : again) {
    if (control.stopped() || again.size() == 1) break;
    try {
      offer(other, search(other, kSharesAgain * share));
    } catch (const Error&) {
      continue;  // memory that the bound does not look at
    }
  }
  // Of a partition whose bound is low more may come than of the one with the shortest step so far.
  const auto hoped = [](const Tried& one) { return one.step / 4 + 3 * (one.bound / 4); };
  const Partition hopeful = std::ranges::min_element(tried, {}, hoped)->partition;
  if (hopeful != partition && !control.stopped()) {
    offer(hopeful, search(hopeful, left / 3));
  }
  offer(partition, search(partition, left / 2));
  // Recomputed stages are chosen with the order, so that another partition may not have them.
  const auto judge = [&](const Partition& moved) {
    return WorthOf(best->plan, Staged(of, frame, &layers, moved));
  };
  const Partition moved =
      ImprovePartition(partition, judge, MostJudged(of, static_cast<int>(partition.size())));
  if (moved != partition) {
    std::optional<Found> same = Restaged(*best, Staged(of, frame, &layers, moved));
    if (same) offer(moved, std::move(*same));
  }
  if (!control.stopped()) offer(moved, search(moved, left));
  return std::move(*best);
}

Plan Searched(const Spec& spec, const SearchControl& control) {
  const std::vector<Shape> shapes = ShapesOf(spec);
  if (shapes.empty()) {
    RequirePartition(kAuto, spec, spec.ranks);
    throw Error("auto has no such placement of " + std::to_string(spec.costs.LayerCount()) +
                " layers on " + std::to_string(spec.ranks) +
                " ranks; give another `placement` or `chunks`");
  }
  std::optional<Found> best;
  std::optional<Error> first_error;
  for (const Shape& shape : shapes) {
    if (best && control.stopped()) break;
    try {
      Found found = SearchShape(OfShape(spec, shape), control);
      if (!best || found.step < best->step) best = std::move(found);
    } catch (const Error& error) {
      // A limit that this placement cannot have; another one may.
      if (!first_error) first_error = error;
    }
  }
  if (!best) throw *first_error;
  best->plan.provenance->budget = spec.search.budget;
  return std::move(best->plan);
}

}  // namespace

Plan GenerateFromLayers(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  return &schedule == &kAuto ? Searched(spec, control) : FromPublished(schedule, spec, control);
}

void CoverPartitions(const Spec& spec, Plan* plan) {
  LayerStages layers(spec.costs, OverlapOf(spec));
  Provenance& provenance = *plan->provenance;
  provenance.bound = std::min(provenance.bound,
                              BoundOfPartitions(spec, &layers, *plan, provenance.makespan).value);
}

}  // namespace contraflow
