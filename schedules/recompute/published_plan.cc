#include "schedules/recompute/published_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/published/rows.h"
#include "schedules/recompute/offload.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/incumbent.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Makes the plan as the spec says, with no choice of whether at all.
Plan Generate(const Schedule& schedule, const Spec& spec) {
  if (spec.offload.choice != Offload::Choice::kNone) {
    return GenerateOffloaded(spec,
                             [&](const Spec& resident) { return Generate(schedule, resident); });
  }
  if (spec.recompute.choice == Recompute::Choice::kNone) return GenerateOrder(schedule, spec);
  return GenerateRecomputed(spec, schedule.stages(spec), Room::kOfOrder, false,
                            [&](const Spec& of) { return GenerateOrder(schedule, of); });
}

/// The shortest with and without each choice that the spec leaves open, within `by`.
Plan GenerateShortest(const Schedule& schedule, const Spec& spec, const Spec& by) {
  const std::vector<Spec> ways = WithoutAndWith(spec);
  // If layers became these stages, their partition is judged with and without.
  if (ways.size() == 1 || !spec.costs.partition.empty()) return Generate(schedule, spec);
  Incumbent best(by);
  bool possible = true;  // as asked for, which comes last
  for (const Spec& way : ways) {
    possible = best.Try([&] { return Generate(schedule, way); });
  }
  return best.Take(possible);
}

}  // namespace

Plan PlanOfStages(const Schedule& schedule, const Spec& asked) {
  Spec spec = asked;
  const bool unlike = !spec.costs.ranks.empty();
  if (unlike && schedule.reject(spec).empty()) {
    const Plan frame = schedule.frame(spec);
    CheckCosts(spec.costs, frame.stages, spec.microbatches);
    spec.costs = OnRanks(spec.costs, frame);
  }
  // A schedule that heeds a limit heeds that of the device; zb-2p has one for each rank.
  const bool by_rank = &schedule == &kZb2p && spec.recompute.choice == Recompute::Choice::kNone;
  if (!DevicesOf(spec).empty() && !by_rank && schedule.reject(spec).empty()) {
    const std::vector<int64_t> limits = LimitsOfRanks(schedule.frame(spec), spec);
    if (!limits.empty()) spec.memory_limit = std::ranges::min(limits);
    // A schedule that then has no room at all is made as if it had, to say by how much it does not
    // fit.
    if (!schedule.reject(spec).empty()) spec.memory_limit = asked.memory_limit;
  }
  Spec by = spec;
  by.memory_limit = asked.memory_limit;
  Plan plan = GenerateShortest(schedule, spec, by);
  if (unlike && !plan.costs) plan.costs = spec.costs;
  return plan;
}

}  // namespace contraflow
