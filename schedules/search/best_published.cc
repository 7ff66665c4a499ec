// Whole plans of published schedules beside what `auto` has found. Of layers each schedule makes
// stages of its own, and on a device each rank has another room for activations, where a search
// takes the least of them for all: so one of these may be shorter than any order that was searched.
// So may one whose activations go to the host, which a search knows nothing of.

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/rows.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"
#include "schedules/search_control.h"

namespace contraflow {
namespace {

Placement PlacementOf(const Plan& plan) {
  if (plan.routes.size() > 1) return Placement::kBidirectional;
  const std::vector<int>& ranks = plan.routes[0].ranks;
  if (plan.stages == plan.ranks) return Placement::kLinear;
  const bool back = plan.stages == 2 * plan.ranks && ranks.front() == ranks.back();
  return back ? Placement::kV : Placement::kInterleaved;
}

/// The spec of a schedule for the model that the costs describe; nothing where it takes none such.
std::optional<Spec> SpecFor(const Schedule& schedule, const Spec& asked) {
  Spec spec = asked;
  spec.schedule = schedule.name;
  if (!schedule.takes_chunks) spec.chunks = 0;
  if (!schedule.reject(spec).empty()) return std::nullopt;
  const int given = CostStages(asked), stages = schedule.stages(spec);
  spec.memory_limit = LimitFor(asked, stages);
  if (spec.memory_limit && *spec.memory_limit < 1) return std::nullopt;
  if (!spec.costs.layers.empty()) return spec;
  if (!RejectRepartition(spec.costs, given, stages).empty()) return std::nullopt;
  spec.costs = Repartition(spec.costs, given, stages);
  return spec;
}

}  // namespace

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

void PreferPublished(const Spec& asked, const SearchControl& control, std::optional<Plan>* best) {
  std::optional<Time> least;
  if (*best) {
    const CostModel& costs = *(*best)->costs;
    least = StepTime(**best, costs, LimitFor(asked, (*best)->stages), asked.search);
  }
  for (const Schedule* schedule : kPublishedSchedules) {
    const std::optional<Spec> spec = SpecFor(*schedule, asked);
    if (!spec || (*best && control.stopped())) continue;
    try {
      const Placement placement = PlacementOf(FrameOf(*schedule, *spec));
      if (!Allows(asked.search.placement, placement)) continue;
      Plan plan = GeneratePlan(*spec, control);
      const CostModel costs = plan.costs.value_or(spec->costs);
      if (!FitsMemory(plan, costs, asked)) continue;
      const std::optional<int64_t> limit = LimitFor(asked, plan.stages);
      const Time step = StepTime(plan, costs, limit, asked.search);
      if (least && step >= *least) continue;
      least = step;
      plan.schedule = kAuto.name;
      plan.costs = costs;
      plan.provenance = Provenance{.placement = std::string(Name(placement)),
                                   .from = std::string(schedule->name),
                                   .cost_stages = {},
                                   .memory_limit = limit,
                                   .makespan = Simulate(plan, costs, Keep::kFigures).makespan,
                                   .bound = ProveBound(plan, costs, limit).value,
                                   .budget = asked.search.budget,
                                   .seed = asked.search.seed,
                                   .noise = asked.search.noise};
      *best = std::move(plan);
    } catch (const Error&) {
      // A limit or costs that this schedule cannot have.
    }
  }
}

}  // namespace contraflow
