// Which order goes well with the host's memory: one that was made for a looser limit, or for none,
// is shorter and holds more, and what it holds too much may have somewhere to go.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/offload.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// How much looser the limits are that orders are made for, in quarters, and the share of the
/// budget that each search has.
struct Looser {
  int quarters;
  int share;
};
constexpr Looser kLooser[] = {{4, 1}, {6, 2}, {8, 2}, {16, 2}};

Spec Loosened(Spec spec, const Looser& looser) {
  const auto times = [&](std::optional<int64_t>* limit) {
    if (*limit)
      *limit =
          std::max<int64_t>(1, **limit / 4 * looser.quarters + **limit % 4 * looser.quarters / 4);
  };
  times(&spec.memory_limit);
  times(&spec.device_memory);
  spec.search.budget /= looser.share;
  spec.offload = {};
  return spec;
}

/// What each rank of a plan may hold, in what MemoryLimit counts.
std::vector<int64_t> LimitsOf(const Plan& plan, const CostModel& costs, const Spec& spec) {
  std::vector<int64_t> limits(static_cast<size_t>(plan.ranks), INT64_MAX);
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (!devices.empty()) limits = RoomForActivations(plan, costs, devices);
  if (!spec.memory_limit) return limits;
  const bool bytes = MemoryLimit(costs).bytes();
  const int64_t parts = bytes ? 1 : std::max(1, plan.stages / plan.ranks);
  for (int64_t& limit : limits) limit = std::min(limit, *spec.memory_limit * parts);
  return limits;
}

/// Those of a spec that names them.
std::vector<int> StagesToOffload(const Plan& plan, const Spec& spec) {
  std::vector<int> stages = spec.offload.stages;
  if (spec.offload.choice == Offload::Choice::kFull) {
    stages.resize(static_cast<size_t>(plan.stages));
    std::iota(stages.begin(), stages.end(), 0);
  }
  if (stages.empty() || stages.back() < plan.stages) return stages;
  throw Error("`offload`: there is no stage " + std::to_string(stages.back()) + ", " +
              spec.schedule + " makes " + std::to_string(plan.stages) + " stages (0.." +
              std::to_string(plan.stages - 1) + ")");
}

}  // namespace

Plan GenerateOffloaded(const Spec& spec, const SearchControl& control,
                       const GenerateResident& generate) {
  CheckHostCost(spec.costs, true);
  const bool limited = spec.memory_limit || !DevicesOf(spec).empty();
  const bool freely = spec.offload.choice == Offload::Choice::kAuto;
  std::optional<Plan> best;
  std::optional<Error> why_not;
  bool best_fits = false;
  Time least = 0;
  for (const Looser& looser : kLooser) {
    if (!limited && best) break;
    try {
      const Spec loosened = Loosened(spec, looser);
      Plan plan = generate(loosened);
      const CostModel costs = plan.costs.value_or(spec.costs);
      plan = freely ? OffloadToFit(plan, costs, LimitsOf(plan, costs, spec))
                    : OffloadStages(plan, costs, StagesToOffload(plan, spec));
      const bool fits = FitsMemory(plan, costs, spec);
      const Time step = StepTime(plan, costs, spec.memory_limit, spec.search);
      if (best && std::pair(!best_fits, least) <= std::pair(!fits, step)) continue;
      best = std::move(plan);
      best_fits = fits;
      least = step;
    } catch (const Error& error) {
      if (!why_not) why_not = error;
    }
  }
  if (!best) throw *why_not;
  if (best->provenance && freely && limited && !LongerThanOrder(*best->costs, spec.search)) {
    const CostModel costs = *best->costs;
    const bool recompute =
        spec.recompute.choice == Recompute::Choice::kAuto && InputBytes(costs).has_value();
    const std::vector<int64_t> limits = LimitsOf(*best, costs, spec);
    const Time bound = BoundOfOffloaded(*best, costs, std::ranges::max(limits)).value;
    Plan plan = *best;
    // First without, which is so never better than with.
    for (const bool moves_r : {false, true}) {
      if (moves_r && !recompute) break;
      SearchWork work(spec.search, control);
      work.Enter("offload");
      plan = ImproveOffloaded(plan, costs, limits, bound, moves_r, spec.search.seed, &work);
    }
    const bool fits = FitsMemory(plan, costs, spec);
    const Time step = StepTime(plan, costs, spec.memory_limit, spec.search);
    if (std::pair(!fits, step) < std::pair(!best_fits, least)) {
      plan.provenance->from = "local search from " + plan.provenance->from;
      best = std::move(plan);
      best_fits = fits;
    }
  }
  if (!best->provenance) return *std::move(best);
  if (!best_fits && why_not) throw *why_not;
  Provenance& provenance = *best->provenance;
  provenance.memory_limit.reset();
  if (limited) provenance.memory_limit = std::ranges::max(LimitsOf(*best, *best->costs, spec));
  provenance.makespan = Simulate(*best, *best->costs, Keep::kFigures).makespan;
  // What does not fit its limit may be shorter than all that does.
  provenance.bound =
      ProveBound(*best, *best->costs, best_fits ? provenance.memory_limit : std::nullopt).value;
  provenance.budget = spec.search.budget;
  return *std::move(best);
}

}  // namespace contraflow
