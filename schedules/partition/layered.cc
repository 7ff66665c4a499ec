// From layers to a plan. A published schedule fixes how many stages there are and where they live:
// a balanced partition comes first, then layers move as long as the simulated step of the
// schedule's own order gets shorter. `auto` tries placements and depths
// (schedules/auto/layer_shape.cc).

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/memory.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/made_plans.h"
#include "schedules/partition/min_memory.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/memory_advice.h"
#include "schedules/recompute/published_plan.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/incumbent.h"
#include "schedules/search/portfolio.h"
#include "schedules/search/search_control.h"

namespace contraflow {
namespace {

/// 1/8 of the evaluations of a partition are for the one with least memory.
constexpr int64_t kMinMemoryShare = 8;
/// 1/4 of the evaluations are for the one whose fullest rank holds least.
constexpr int kLightestShare = 4;
/// Plans that are made, where none fits, to find a partition with one that does.
constexpr int64_t kMostMade = 32;
/// The bound for any partition may take 1/2 of the budget.
constexpr int64_t kBoundShare = 2;

}  // namespace

void RequirePartition(const Schedule& schedule, const Spec& spec, int stages) {
  const std::string why_not = RejectPartition(spec.costs, ChoiceOf(spec), stages);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
}

namespace {

Partition PartitionOf(const Schedule& schedule, const Spec& spec, const Plan& frame,
                      LayerStages* layers) {
  const int stages = schedule.stages(spec);
  if (std::optional<Partition> fixed = FixedPartition(spec, stages)) return *fixed;
  std::optional<Plan> order;
  // Partitions are judged with what runs again, if the spec names it.
  using Choice = Recompute::Choice;
  const Choice recompute = spec.recompute.choice;
  const bool known_recompute = (recompute == Choice::kFull || recompute == Choice::kStages) &&
                               spec.offload.choice == Offload::Choice::kNone;
  // A stage has at most this number of layers with components.
  const int most_layers = HasComponents(spec.costs.layers) ? kMaxLayers : layers->layers();
  const auto worth = [&](const Partition& partition, bool components) {
    if (std::ranges::max(partition) > most_layers) return kImpossible;
    Spec staged = components ? Staged(spec, frame, layers, partition)
                             : StagedChunks(spec, frame, layers, partition);
    // With what these stages hold there may be no room for any order.
    if (!schedule.reject(staged).empty()) return kImpossible;
    if (!order || schedule.heeds_costs) {
      order = schedule.generate(staged);
      if (known_recompute) order = RecomputeStages(*order, StagesToRecompute(*order, staged));
    }
    if (known_recompute) staged.recompute = {};
    return WorthOf(*order, staged);
  };
  KnownWorths known;
  const auto judge = [&](const Partition& partition) {
    return JudgeOnce(&known, partition, [&](const Partition& one) { return worth(one, false); });
  };
  // An order that is made anew for each partition takes far longer than a bound on all orders.
  PartitionJudge least;
  if (schedule.heeds_costs) {
    least = [&](const Partition& partition) {
      if (std::ranges::max(partition) > most_layers) return kImpossible;
      const CostModel costs = StagedChunks(spec, frame, layers, partition).costs;
      return PartitionWorth{0, LowerBound(frame, costs), std::ranges::max(partition)};
    };
  }
  std::vector<Partition> starts = StartingPartitions(*layers, frame, spec.costs);
  // Only the partition of the bound is wanted.
  Spec quick = spec;
  quick.search.budget = 0;
  // The order of the schedule says what it holds.
  const Partition balanced = BalancedPartition(quick, layers, frame, judge(starts.front()).step);
  if (!balanced.empty() && std::ranges::count(starts, balanced) == 0) starts.push_back(balanced);
  const PartitionJudge last = [&](const Partition& partition) {
    return spec.search.components ? worth(partition, true) : judge(partition);
  };
  const PartitionChoice choice = ChoiceOf(spec);
  const int64_t most = MostJudged(spec, stages);
  Partition best =
      choice.layers.empty() ? BestFrom(starts, judge, most, last, least) : choice.layers;
  const PartitionWorth found = judge(best);
  if (!CountsBytes(spec.costs)) return best;
  if (found.excess <= 0) {
    if (HoldsLess(spec) || !order) return best;
    const auto longest = [&](Time step) {
      return static_cast<Time>(static_cast<double>(step) * choice.longer);
    };
    // In place of the excess, the bytes of the fullest rank, by the partition's own order.
    const PartitionJudge held = [&](const Partition& partition) {
      PartitionWorth result = worth(partition, false);
      if (result.excess > 0 || result.step > longest(found.step)) return kImpossible;
      const CostModel costs = StagedChunks(spec, frame, layers, partition).costs;
      result.excess = std::ranges::max(TotalOfRanks(*order, costs));
      return result;
    };
    starts.push_back(best);
    Partition lightest = BestFrom(starts, held, most / kLightestShare, held);
    return last(lightest).step <= longest(last(best).step) ? lightest : best;
  }
  Partition min_memory = MinMemoryPartition(spec, frame, layers).partition;
  if (judge(min_memory) >= found) return best;
  return ImprovePartition(std::move(min_memory), judge, most / kMinMemoryShare, least);
}

Plan FromPublished(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(std::string(schedule.name) + " " + why_not);
  RequirePartition(schedule, spec, schedule.stages(spec));
  const Plan frame = schedule.frame(spec);
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  CheckStages(spec, &layers, schedule.stages(spec));
  Incumbent choice(spec);
  const auto make = [&](const Spec& one, const Partition& partition) {
    const Spec staged = Staged(one, frame, &layers, partition);
    CheckBytes(staged.costs);
    Plan plan = PlanOfStages(schedule, staged);
    plan.costs = staged.costs;
    return plan;
  };
  const auto offer = [&](const Spec& one, const Partition& partition) {
    return choice.Try([&] { return make(one, partition); });
  };
  const bool free = !FixedPartition(spec, frame.stages);
  const Partition even = EvenPartition(layers.layers(), frame.stages);
  // A plan that fits as it is may have another partition than one that is recomputed or goes to the
  // host, and the latter is chosen when no order is known.
  const std::vector<Spec> ways = WithoutAndWith(spec);
  std::vector<Partition> partitions;
  bool possible = true;  // as asked for, which comes last
  for (const Spec& one : ways) {
    if (&one != &ways.back() && HoldsLess(one)) {
      choice.Try([&] { return PlanOfPublished(schedule, one, control); });
      continue;
    }
    partitions.push_back(PartitionOf(schedule, one, frame, &layers));
    possible = offer(one, partitions.back());
  }
  const Partition& last = partitions.back();
  if (free && HoldsLess(spec)) {
    if (ways.size() == 1) {
      // A partition that ignores what runs again, and one for which nothing needs to, may do
      // better.
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
  } else if (free && spec.search.components && even != last) {
    // Partitions are judged as chunks first.
    offer(spec, even);
  }
  if (spec.recompute.choice == Recompute::Choice::kAuto && !choice.fits()) {
    // The least memory of all, on a partition of its own.
    Spec full = spec;
    full.recompute = {.choice = Recompute::Choice::kFull};
    choice.Try([&] { return FromPublished(schedule, full, control); });
  } else if (free && HoldsLess(spec) && CountsBytes(spec.costs) && choice.any() && !choice.fits()) {
    // Plans are made whole on more partitions, as chunks: components take long.
    Spec chunks = spec;
    chunks.search.components.reset();
    Incumbent fitting(chunks);
    const PartitionJudge made = [&](const Partition& partition) {
      PartitionWorth worth = kImpossible;
      if (control.stopped()) return worth;
      fitting.Attempt([&] {
        const Plan plan = make(chunks, partition);
        const Worth of_plan = WorthOfPlan(plan, chunks);
        worth = {of_plan.excess, of_plan.step, std::ranges::max(partition)};
        fitting.Offer(plan);
      });
      return worth;
    };
    ImprovePartition(choice.plan().costs->partition, made, kMostMade);
    if (fitting.fits()) possible |= offer(spec, fitting.plan().costs->partition);
  }
  return choice.Take(possible);
}

}  // namespace

Plan PlanOfPublished(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  if (spec.costs.layers.empty()) return PlanOfStages(schedule, spec);
  Spec one = spec;  // whatever else is searched concurrently with it
  one.search = {.components = spec.search.components};
  return control.made->Get(one, [&] { return FromPublished(schedule, one, control); });
}

void CheckDevicesForLayers(const Spec& spec, const SearchControl& control) {
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (devices.empty()) return;
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  const CostModel whole = layers.Make({layers.layers()});
  if (!whole.memory) return;
  const MemoryCost& memory = *whole.memory;
  const MemoryFigures held = FixedMemoryOf(SingleRank(spec), whole).front();
  // Parameters that are gathered are those of single stages.
  const int64_t fixed = (spec.ranks - 1) * memory.workspace_bytes + held.fixed() - held.gathered;
  const bool bought = HoldsLess(spec);
  const int64_t least = bought ? fixed : fixed + memory.activation(0);
  int64_t room = 0;  // some may have any amount
  for (const int64_t device : devices) room = std::min(room, INT64_MAX - device) + device;
  if (least <= room) return;
  throw Error("auto does not fit `device_memory`: the layers hold " + FormatCount(least) +
              " bytes" + (bought ? "" : " with one micro-batch") + ", all devices have " +
              FormatCount(room) + "; " + DeviceAdvice(spec, fixed <= room));
}

void CoverPartitions(const Spec& spec, const SearchControl& control, Plan* plan) {
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  Provenance& provenance = *plan->provenance;
  const int64_t most = spec.search.budget / SearchWork::kNanosecondsEach / kBoundShare;
  provenance.bound = std::min(
      provenance.bound, BoundOfPartitions(spec, &layers, *plan, provenance.makespan, most).value);
}

}  // namespace contraflow
