#include "schedules/search/portfolio.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/rows.h"
#include "schedules/search/work.h"

namespace contraflow {
namespace {

/// Instructions that are evaluated in the time in which one is lowered to components, and to
/// messages alone.
constexpr int64_t kWorkOfLowered = 80, kWorkOfComm = 6;

/// Most activations that a schedule is stated to hold on its fullest rank.
int MostActivations(const Schedule& schedule, const Spec& spec) {
  int most = 0;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    most = std::max(most, schedule.peak_activations(spec, rank));
  }
  return most;
}

/// True where no order that holds at most this many activations has a makespan of `enough`: what a
/// schedule holds is known before it is made, and to make it may take long.
bool ProvenLonger(int most, const Candidate& candidate, Time enough) {
  const Spec& spec = candidate.spec;
  const int64_t held = most * MemoryLimit(spec.costs).largest();
  // Within the limit itself `enough` is no longer than the bound.
  if (spec.memory_limit && held >= *spec.memory_limit) return false;
  return ProveBound(candidate.frame, spec.costs, held).value > enough;
}

bool Suffices(const Plan& plan, const Candidate& candidate, Time enough) {
  const Spec& spec = candidate.spec;
  const Simulation simulation = Simulate(plan, spec.costs);
  return simulation.makespan <= enough && candidate.Fits(simulation);
}

}  // namespace

std::vector<Plan> PublishedOrders(const Candidate& candidate, std::optional<Time> enough) {
  std::vector<std::pair<int, const Schedule*>> schedules;
  for (const Schedule* schedule : kPublishedSchedules) {
    if (!schedule->reject(candidate.spec).empty()) continue;
    if (schedule->frame(candidate.spec).routes != candidate.frame.routes) continue;
    schedules.emplace_back(MostActivations(*schedule, candidate.spec), schedule);
  }
  std::stable_sort(schedules.begin(), schedules.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::optional<Plan>> made(schedules.size());
  const auto make = [&](size_t i) {
    Spec spec = candidate.spec;
    spec.schedule = schedules[i].second->name;
    made[i] = schedules[i].second->generate(spec);
  };
  // Schedules that cannot suffice come into it only where none of the others does.
  std::vector<size_t> longer;
  bool sufficient = false;
  for (size_t i = 0; i < schedules.size() && !sufficient; ++i) {
    if (enough && ProvenLonger(schedules[i].first, candidate, *enough)) {
      longer.push_back(i);
      continue;
    }
    make(i);
    sufficient = enough && made[i] && Suffices(*made[i], candidate, *enough);
  }
  if (!sufficient) std::for_each(longer.begin(), longer.end(), make);
  std::vector<Plan> plans;
  for (std::optional<Plan>& plan : made) {
    if (plan) plans.push_back(std::move(*plan));
  }
  return plans;
}

int64_t ExcessMemory(const Plan& plan, const CostModel& costs, const Spec& spec) {
  int64_t excess = 0;
  if (const std::optional<int64_t> most = LimitFor(spec, plan.stages)) {
    const MemoryLimit limit(costs, most);
    for (const RankFigures& rank : Simulate(plan, costs, Keep::kFigures).ranks) {
      excess = std::max(excess, limit.Peak(rank) - *most);
    }
  }
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (devices.empty()) return excess;
  const std::vector<MemoryFigures> ranks = MemoryOf(plan, costs);
  for (size_t r = 0; r < devices.size(); ++r) {
    excess = std::max(excess, ranks[r].total() - devices[r]);
  }
  return excess;
}

bool FitsMemory(const Plan& plan, const CostModel& costs, const Spec& spec) {
  return ExcessMemory(plan, costs, spec) == 0;
}

bool HasEpilogue(const CostModel& costs) {
  const auto has = [](const StageCost& cost) { return cost.reduce > 0 || cost.step > 0; };
  return std::ranges::any_of(costs.stages, has) ||
         std::ranges::any_of(costs.layers, has, &LayerCost::cost);
}

bool ByComponents(const CostModel& costs, const SearchOptions& options) {
  return options.components && costs.components();
}

bool LongerThanOrder(const CostModel& costs, const SearchOptions& options) {
  return HasEpilogue(costs) || ByComponents(costs, options);
}

Time StepTime(const Plan& plan, const CostModel& given, const Spec& spec,
              std::optional<int64_t> limit, SearchWork* work) {
  std::optional<CostModel> scaled;
  if (given.ring) scaled = AtReplicas(given, plan);
  const CostModel& costs = scaled ? *scaled : given;
  if (!LongerThanOrder(costs, spec.search)) return Simulate(plan, costs).makespan;
  const bool components = ByComponents(costs, spec.search);
  LowerOptions lower = {.target = components ? Level::kComponent : Level::kComm,
                        .overlap = spec.search.components.value_or(Overlap::kAll),
                        .verify = false};
  if (components) lower.limits = LimitsOfRanks(plan, costs, spec, limit);
  const Plan lowered = Lower(plan, costs, lower);
  if (work != nullptr) {
    work->Spend((components ? kWorkOfLowered : kWorkOfComm) * InstructionCount(lowered));
  }
  return Simulate(lowered, costs).makespan;
}

Time StepTime(const Plan& plan, const Spec& spec, Time makespan, SearchWork* work) {
  if (!LongerThanOrder(spec.costs, spec.search)) return makespan;
  return StepTime(plan, spec.costs, spec, spec.memory_limit, work);
}

bool HoldsLess(const Spec& spec) {
  return spec.recompute.choice != Recompute::Choice::kNone ||
         spec.offload.choice != Offload::Choice::kNone;
}

std::vector<Spec> WithoutAndWith(const Spec& spec) {
  std::vector<Spec> specs = {spec};
  if (spec.offload.choice == Offload::Choice::kAuto) {
    specs.insert(specs.begin(), spec);
    specs.front().offload = {};
  }
  if (spec.recompute.choice != Recompute::Choice::kAuto) return specs;
  std::vector<Spec> without = specs;
  for (Spec& one : without) one.recompute = {};
  specs.insert(specs.begin(), without.begin(), without.end());
  return specs;
}

}  // namespace contraflow
