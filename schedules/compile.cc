#include "schedules/compile.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "schedules/search/memory_advice.h"

namespace contraflow {
namespace {

/// Chunks of a plan up to which an error is worth another one.
constexpr int64_t kMostTried = 100'000;

/// How many bytes a rank holds at its peak, or activations where the costs give no bytes.
struct Peaks {
  bool bytes;
  std::vector<int64_t> of;  // each rank

  Peaks(const CostModel& costs, const Simulation& simulation)
      : bytes(costs.memory && costs.memory->activation_bytes > 0) {
    for (const RankFigures& figures : simulation.ranks) {
      of.push_back(bytes ? figures.peak_bytes : figures.peak_activations);
    }
  }
  size_t Worst() const {
    return static_cast<size_t>(std::max_element(of.begin(), of.end()) - of.begin());
  }
};

/// What makes the spec fit its limit, beside a higher one.
std::string WaysToFit(const Spec& spec) {
  std::string text;
  const bool plain = spec.recompute.choice == Recompute::Choice::kNone;
  const int64_t chunks = int64_t{spec.microbatches} * FindSchedule(spec.schedule).stages(spec);
  if (plain && chunks <= kMostTried && FitsRecomputed(spec)) {
    text += ", give `recompute` auto";
  }
  Spec searched = spec;
  searched.chunks = 0;
  searched.search.placement = Placement::kAny;
  const std::optional<int64_t> least = LeastLimit(searched, !plain);
  if (!least || spec.schedule == kAuto.name) return text + ", or take a schedule that holds less";
  if (*least <= *spec.memory_limit) return text + ", or take auto, which fits";
  return text + ", or to " + FormatCount(*least) + " and take auto, which then fits";
}

void CheckMemory(const Plan& plan, const CostModel& costs, const Spec& spec, int64_t limit) {
  const Simulation simulation = Simulate(plan, costs);
  const Peaks peaks(costs, simulation);
  const size_t worst = peaks.Worst();
  if (peaks.of[worst] <= limit) return;
  const int index = simulation.ranks[worst].peak_index;
  const std::string unit = peaks.bytes ? " bytes" : " activations";
  std::string text = plan.schedule + " does not fit `memory_limit`: rank " + std::to_string(worst) +
                     " holds " + FormatCount(peaks.of[worst]) + unit + " during instruction " +
                     std::to_string(index) + " of its compute order (" +
                     ToString(plan.programs[worst][static_cast<size_t>(index)]) +
                     "), the limit is " + FormatCount(limit) + unit;
  if (peaks.bytes) text += " (" + Breakdown(MemoryOf(plan, costs)[worst]) + ")";
  throw Error(text + "; raise it to " + FormatCount(peaks.of[worst]) + WaysToFit(spec));
}

}  // namespace

Plan Compile(Spec spec, const CompileOptions& options) {
  FindSchedule(spec.schedule);
  CheckSpec(spec);
  const Overlap overlap = options.overlap.value_or(spec.costs.derived.value_or(Overlap::kAll));
  if (spec.costs.moe && spec.costs.stages.empty()) DeriveChunkCosts(&spec.costs, overlap);
  spec.search.components = options.level >= Level::kComponent;
  if (options.progress) spec.search.report = options.progress;
  if (options.stop != nullptr) spec.search.stop = options.stop;
  Plan plan = GeneratePlan(spec);
  // A searched plan may have other stages than the costs: then it brings its own, and its limit.
  const CostModel costs = plan.costs ? *plan.costs : spec.costs;
  const bool searched = plan.provenance && plan.provenance->memory_limit;
  const std::optional<int64_t> limit = searched ? plan.provenance->memory_limit : spec.memory_limit;
  if (limit) CheckMemory(plan, costs, spec, *limit);
  const LowerOptions lower = {.target = options.level, .overlap = overlap, .memory_limit = limit};
  return Lower(std::move(plan), costs, lower, options.observer);
}

int64_t MemoryLimitOf(const Spec& spec, const std::string& text) {
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  return ParseMemoryLimit(text, spec, schedule.stages(spec));
}

}  // namespace contraflow
