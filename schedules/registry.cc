#include "schedules/registry.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "schedules/auto/auto.h"
#include "schedules/partition/made_plans.h"
#include "schedules/partition/partition.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/published_plan.h"

namespace contraflow {

std::span<const Schedule* const> Schedules() {
  static const auto kAll = [] {
    std::array<const Schedule*, std::size(kPublishedSchedules) + 1> all = {};
    std::copy(std::begin(kPublishedSchedules), std::end(kPublishedSchedules), all.begin());
    all.back() = &kAuto;
    return all;
  }();
  return kAll;
}

std::string ScheduleName(const std::string& spelling) {
  std::string plain = Plain(spelling);
  if (plain.starts_with("schedule")) plain.erase(0, 8);  // PyTorch's class, ScheduleGPipe
  if (plain == "zbvzerobubble") plain = "zbv";
  if (plain == "interleaved") plain = "interleaved1f1b";
  for (const Schedule* schedule : Schedules()) {
    if (Plain(schedule->name) == plain) return std::string(schedule->name);
  }
  return spelling;
}

const Schedule& FindSchedule(const std::string& name) {
  std::vector<std::string> names;
  for (const Schedule* schedule : Schedules()) {
    if (schedule->name == name) return *schedule;
    names.emplace_back(schedule->name);
  }
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  const std::string shown = name.substr(0, 64);
  throw Error("unknown schedule \"" + shown + "\"" + DidYouMean(ScheduleName(shown), names) +
              "; schedules are " + known);
}

Plan GeneratePlan(const Spec& spec) { return GeneratePlan(spec, SearchControl()); }

Plan GeneratePlan(const Spec& spec, const SearchControl& control) {
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  const bool layered = !spec.costs.layers.empty();
  if (layered && control.made == nullptr) {
    MadePlans made;
    SearchControl keeping = control;
    keeping.made = &made;
    return GeneratePlan(spec, keeping);
  }
  if (&schedule == &kAuto) return SearchPlan(spec, control);
  return PlanOfPublished(schedule, spec, control);
}

bool FitsRecomputed(const Spec& spec, const SearchControl& control) {
  const MemoryLimit limit(spec.costs, spec.memory_limit);
  if (!limit.amount() || !limit.bytes() || !InputBytes(spec.costs)) return false;
  Spec recomputed = spec;
  recomputed.recompute = {.choice = Recompute::Choice::kAuto};
  try {
    const Plan plan = GeneratePlan(recomputed, control);
    return limit.Fits(Simulate(plan, plan.costs.value_or(spec.costs)));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace contraflow
