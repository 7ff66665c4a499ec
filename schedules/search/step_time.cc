#include "schedules/search/step_time.h"

#include <algorithm>

#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

/// Reductions and optimizer steps belong to the step, but to no compute order.
bool HasEpilogue(const CostModel& costs) {
  return std::any_of(costs.stages.begin(), costs.stages.end(),
                     [](const StageCost& c) { return c.reduce > 0 || c.step > 0; });
}

}  // namespace

bool LongerThanOrder(const CostModel& costs, const SearchOptions& options) {
  return HasEpilogue(costs) || (options.components && costs.moe);
}

Time StepTime(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
              const SearchOptions& options) {
  if (!LongerThanOrder(costs, options)) return Simulate(plan, costs).makespan;
  const bool components = options.components && costs.moe;
  const LowerOptions lower = {.target = components ? Level::kComponent : Level::kComm,
                              .overlap = costs.derived.value_or(Overlap::kAll),
                              .memory_limit = limit};
  return Simulate(Lower(plan, costs, lower), costs).makespan;
}

}  // namespace contraflow
