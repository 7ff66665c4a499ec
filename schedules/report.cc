#include "schedules/report.h"

#include <algorithm>
#include <limits>

#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "schedules/registry.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

const Schedule* ScheduleOf(const Plan& plan) {
  for (const Schedule* schedule : Schedules()) {
    if (schedule->name == plan.schedule) return schedule;
  }
  return nullptr;
}

std::optional<FormulaFigures> MakeFormula(const Plan& plan, const CostModel& costs,
                                          const Simulation& simulation) {
  const Schedule* const schedule = ScheduleOf(plan);
  // No formula knows recompute.
  if (plan.layers > 0 || RecomputedCells(plan).any()) return {};
  if (schedule == nullptr || schedule->formula == nullptr || !costs.uniform()) return {};
  const Spec spec = {
      .schedule = plan.schedule,
      .ranks = plan.ranks,
      .microbatches = plan.microbatches,
      .chunks = plan.ranks > 0 && plan.stages % plan.ranks == 0 ? plan.stages / plan.ranks : 0,
      .data_parallel = plan.data_parallel,
      .costs = costs,
      .memory_limit = {}};
  if (!schedule->reject(spec).empty() || schedule->stages(spec) != plan.stages) return {};
  FormulaFigures figures;
  figures.text = schedule->formula->text;
  figures.published = schedule->formula->published(spec);
  if (!HasEpilogue(costs)) figures.exact = schedule->formula->exact(spec);
  figures.holds =
      std::all_of(simulation.ranks.begin(), simulation.ranks.end(),
                  [&](const RankFigures& rank) { return rank.bubble == figures.published; });
  return figures;
}

}  // namespace

namespace {

double GapTo(Time bound, Time makespan) {
  return bound == 0 ? 0 : static_cast<double>(makespan - bound) / static_cast<double>(bound);
}

}  // namespace

double Report::gap() const { return GapTo(bound.value, simulation.makespan); }
double Report::gap_to_any_partition() const { return GapTo(*any_partition, simulation.makespan); }

namespace {

/// The largest of a figure of all ranks; 0 where there are none.
template <typename Figure>
Figure Largest(const Simulation& simulation, Figure RankFigures::*figure) {
  Figure largest = 0;
  for (const RankFigures& rank : simulation.ranks) largest = std::max(largest, rank.*figure);
  return largest;
}

}  // namespace

int Report::peak_activations() const { return Largest(simulation, &RankFigures::peak_activations); }
int64_t Report::peak_bytes() const { return Largest(simulation, &RankFigures::peak_bytes); }
Time Report::largest_exposed() const { return Largest(simulation, &RankFigures::exposed); }
Time Report::largest_bubble() const { return Largest(simulation, &RankFigures::bubble); }

double ActivationsHeld(const Plan& plan, const CostModel& costs, const Simulation& run) {
  if (MemoryLimit(costs).bytes()) {
    return static_cast<double>(Largest(run, &RankFigures::peak_bytes));
  }
  return static_cast<double>(Largest(run, &RankFigures::peak_activations)) * plan.ranks /
         plan.stages;
}

double MemoryOf1F1B(const Plan& plan, const CostModel& costs, const Simulation& run) {
  int64_t most = std::min(plan.ranks, plan.microbatches);
  if (MemoryLimit(costs).bytes()) {
    // Rank r has every stage whose share of the model ends within the r-th part of it.
    most = 0;
    for (int rank = 0, stage = 0; rank < plan.ranks; ++rank) {
      int64_t each = 0;
      for (; stage * plan.ranks < (rank + 1) * plan.stages; ++stage) {
        each += costs.memory->activation(stage);
      }
      most = std::max(most, each * std::min(plan.ranks - rank, plan.microbatches));
    }
  }
  return ActivationsHeld(plan, costs, run) / static_cast<double>(most);
}

bool LeavesOutUpdates(const Plan& plan, const CostModel& costs) {
  return plan.data_parallel > 1 && !HasEpilogue(costs);
}

namespace {

/// REDUCE and STEP follow the last weight gradient of all, whichever stage that is of.
Time ShortestUpdate(const Plan& plan, const CostModel& costs) {
  if (plan.level == Level::kCompute) return 0;
  Time shortest = std::numeric_limits<Time>::max();
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const StageCost& cost = costs.stage(s);
    const bool sums = NeedsReduce(plan, holders[static_cast<size_t>(s)].size());
    shortest = std::min(shortest, cost.step + (sums ? cost.reduce : 0));
  }
  return shortest;
}

}  // namespace

Report MakeReport(const Plan& plan, const CostModel& costs, std::optional<int64_t> memory_limit,
                  Keep keep) {
  Report report;
  report.schedule = plan.schedule;
  report.unit = costs.unit;
  report.level = plan.level;
  report.components = plan.layers > 0;
  report.partition = costs.partition;
  report.simulation = Simulate(plan, costs, keep);
  if (keep == Keep::kTimeline) {
    report.critical_path = CriticalPath(plan, costs, report.simulation.timeline);
  }
  if (costs.memory) report.memory = MemoryOf(plan, costs);
  // The limit that a searched plan was made for holds for its own costs.
  const bool made_for = !memory_limit && plan.provenance && costs == plan.costs;
  if (made_for) memory_limit = plan.provenance->memory_limit;
  // On unlike devices that is what the fullest rank leaves, and others may hold more. A plan
  // offloaded for a limit may miss it with other costs, and be shorter than all that fits.
  const bool fits = MemoryLimit(costs, memory_limit).Fits(report.simulation);
  if (!fits && (made_for || OffloadedCells(plan).any())) memory_limit.reset();
  report.bound = ProveBound(plan, costs, memory_limit);
  // A plan that was searched with a partition of its own has a bound for any, but for components.
  const bool own =
      plan.provenance && costs == plan.costs && !costs.partition.empty() && plan.layers == 0;
  const Time any = own ? plan.provenance->bound : 0;
  if (own) report.any_partition = std::min(any, report.bound.value);
  const Time update = ShortestUpdate(plan, costs);
  report.bound.value += update;
  report.bound.tail += update;
  report.without_updates = LeavesOutUpdates(plan, costs);
  report.formula = MakeFormula(plan, costs, report.simulation);
  return report;
}

}  // namespace contraflow
