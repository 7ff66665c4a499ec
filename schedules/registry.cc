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
#include "schedules/made_plans.h"
#include "schedules/partition/partition.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/offload.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/ladder.h"
#include "schedules/search/portfolio.h"

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

namespace {

Plan GenerateOnce(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  if (spec.offload.choice != Offload::Choice::kNone) {
    return GenerateOffloaded(spec, control, [&](const Spec& resident) {
      return GenerateOnce(schedule, resident, control);
    });
  }
  if (spec.recompute.choice == Recompute::Choice::kNone) {
    return GenerateOrder(schedule, spec, control);
  }
  return &schedule == &kAuto ? GenerateSearchedRecomputed(spec, control)
                             : GenerateRecomputed(schedule, spec, Room::kOfOrder, control);
}

/// Recompute and offloading are chosen with the order, so all of it is repeated with ever larger
/// budgets.
Plan GenerateWithBudgets(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  std::optional<Plan> best;
  std::optional<Error> why_not;
  PlanWorth least;
  for (const int64_t budget : LadderOf(spec.search, LeastBudgetOfChoices(spec))) {
    if (best && control.stopped()) break;
    Spec part = spec;
    part.search.budget = budget;
    part.search.lesser_limits = false;
    try {
      Plan plan = GenerateOnce(schedule, part, control);
      const PlanWorth judged = WorthOfPlan(plan, spec);
      if (best && judged > least) continue;
      best = std::move(plan);
      least = judged;
    } catch (const Error& error) {
      why_not = error;
    }
  }
  if (!best) throw *why_not;
  best->provenance->budget = spec.search.budget;
  return std::move(*best);
}

/// `limit`: what was asked for, where the spec has one that is sure to fit its devices.
Plan GenerateFromStages(const Schedule& schedule, const Spec& spec, std::optional<int64_t> limit,
                        const SearchControl& control) {
  const bool plain = spec.offload.choice == Offload::Choice::kNone &&
                     spec.recompute.choice == Recompute::Choice::kNone;
  // If layers became these stages, their partition is judged with and without.
  const bool layered = &schedule != &kAuto && !spec.costs.partition.empty();
  if (plain || layered) return GenerateOnce(schedule, spec, control);
  if (&schedule != &kAuto) {
    Spec by = spec;
    by.memory_limit = limit;
    PlanChoice choice(by);
    bool possible = true;  // as asked for, which comes last
    for (const Spec& one : WithoutAndWith(spec)) {
      possible = choice.Offer([&] { return GenerateOnce(schedule, one, control); });
    }
    return choice.Take(possible);
  }
  PlanChoice choice(spec);
  // To recompute is first not to, and to offload is first to keep; but where both are searched
  // together, offloading alone is not. Of layers that is looked at for all partitions.
  const bool together = spec.offload.choice != Offload::Choice::kNone &&
                        spec.recompute.choice == Recompute::Choice::kAuto;
  Spec away = spec;
  away.recompute = {};
  if (together && spec.costs.partition.empty()) {
    choice.Offer([&] { return GenerateWithBudgets(schedule, away, control); });
  }
  choice.Offer([&] { return GenerateWithBudgets(schedule, spec, control); });
  return choice.Take();
}

}  // namespace

Plan FrameOf(const Schedule& schedule, Spec spec) {
  spec.costs = UniformCosts(1, 1, 1);
  spec.memory_limit.reset();
  return FrameOf(schedule.generate(spec));
}

Plan GeneratePlan(const Spec& spec) { return GeneratePlan(spec, SearchControl()); }

Plan GeneratePlan(const Spec& asked, const SearchControl& control) {
  const Schedule& schedule = FindSchedule(asked.schedule);
  CheckSpec(asked);
  const bool layered = !asked.costs.layers.empty();
  if (layered && control.made == nullptr) {
    MadePlans made;
    SearchControl keeping = control;
    keeping.made = &made;
    return GeneratePlan(asked, keeping);
  }
  const bool offloads = asked.offload.choice != Offload::Choice::kNone;
  if (&schedule == &kAuto && (layered || offloads || !DevicesOf(asked).empty())) {
    if (layered) CheckDevicesForLayers(asked, control);
    std::optional<Plan> best;
    std::optional<Error> why_not;
    try {
      best = layered ? GenerateFromLayers(schedule, asked, control)
                     : GenerateFromStages(schedule, asked, asked.memory_limit, control);
    } catch (const Error& error) {
      why_not = error;
    }
    PreferPublished(asked, control, &best);
    if (!best) throw *why_not;
    best->provenance->interrupted = control.stopped();
    if (layered) CoverPartitions(asked, control, &*best);
    return std::move(*best);
  }
  if (layered) {
    return control.made->Get(asked, [&] { return GenerateFromLayers(schedule, asked, control); });
  }
  Spec spec = asked;
  const bool unlike = !spec.costs.ranks.empty() && &schedule != &kAuto;
  if (unlike && schedule.reject(spec).empty()) {
    const Plan frame = FrameOf(schedule, spec);
    CheckCosts(spec.costs, frame.stages, spec.microbatches);
    spec.costs = OnRanks(spec.costs, frame);
  }
  // A schedule that heeds a limit heeds that of the device; `auto` has one for each placement, and
  // zb-2p one for each rank.
  const bool by_rank = &schedule == &kZb2p && spec.recompute.choice == Recompute::Choice::kNone;
  if (!DevicesOf(spec).empty() && &schedule != &kAuto && !by_rank &&
      schedule.reject(spec).empty()) {
    LimitByDevice(FrameOf(schedule, spec), &spec);
    // A schedule that then has no room at all is made as if it had, to say by how much it does not
    // fit.
    if (!schedule.reject(spec).empty()) spec.memory_limit = asked.memory_limit;
  }
  Plan plan = GenerateFromStages(schedule, spec, asked.memory_limit, control);
  if (unlike && !plan.costs) plan.costs = spec.costs;
  return plan;
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
