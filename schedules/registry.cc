#include "schedules/registry.h"

#include <algorithm>
#include <vector>

#include "compiler/plan/error.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/recompute.h"

namespace contraflow {
namespace {

constexpr const Schedule* kSchedules[] = {&kGpipe,   &kOneFOneB, &kInterleaved, &kZb1p,
                                          &kZb2p,    &kZbV,      &kVHalf,       &kVMin,
                                          &kChimera, &kDualPipe, &kDualPipeV,   &kAuto};

}  // namespace

std::span<const Schedule* const> Schedules() { return kSchedules; }

const Schedule& FindSchedule(const std::string& name) {
  std::vector<std::string> names;
  for (const Schedule* schedule : kSchedules) {
    if (schedule->name == name) return *schedule;
    names.emplace_back(schedule->name);
  }
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  const std::string shown = name.substr(0, 64);
  throw Error("unknown schedule \"" + shown + "\"" + DidYouMean(shown, names) + "; schedules are " +
              known);
}

Plan GeneratePlan(const Spec& spec) {
  if (spec.recompute.choice != Recompute::Choice::kNone) {
    const bool searched = spec.schedule == kAuto.name;
    return searched ? GenerateSearchedRecomputed(spec) : GenerateRecomputed(spec);
  }
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(spec.schedule + " " + why_not);
  const int stages = schedule.stages(spec);
  if (stages > kMaxStages || int64_t{stages} * spec.microbatches > kMaxCells) {
    throw Error(spec.schedule + " would make " + std::to_string(stages) + " stages x " +
                std::to_string(spec.microbatches) + " micro-batches, more than the limit of " +
                std::to_string(kMaxStages) + " stages and " + std::to_string(kMaxCells) +
                " chunks; use fewer `ranks` or `microbatches`");
  }
  CheckCosts(spec.costs, stages, spec.microbatches);
  Plan plan = schedule.generate(spec);
  return plan;
}

}  // namespace contraflow
