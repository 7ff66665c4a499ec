#include "tools/build.h"

#include <algorithm>
#include <vector>

#include "compiler/error.h"
#include "compiler/memory.h"
#include "compiler/simulate.h"
#include "tools/table.h"

namespace contraflow {
namespace {

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

void CheckMemory(const Plan& plan, const Spec& spec) {
  const Simulation simulation = Simulate(plan, spec.costs);
  const Peaks peaks(spec.costs, simulation);
  const size_t worst = peaks.Worst();
  if (peaks.of[worst] <= *spec.memory_limit) return;
  const int index = simulation.ranks[worst].peak_index;
  const std::string unit = peaks.bytes ? " bytes" : " activations";
  std::string text = plan.schedule + " does not fit --memory-limit: rank " + std::to_string(worst) +
                     " holds " + FormatCount(peaks.of[worst]) + unit + " during instruction " +
                     std::to_string(index) + " of its compute order (" +
                     ToString(plan.programs[worst][static_cast<size_t>(index)]) +
                     "), the limit is " + FormatCount(*spec.memory_limit) + unit;
  if (peaks.bytes) text += " (" + Breakdown(MemoryOf(plan, spec.costs)[worst]) + ")";
  throw Error(text + "; raise it to " + FormatCount(peaks.of[worst]) +
              ", or take a schedule that holds less");
}

}  // namespace

Plan BuildPlan(Spec spec, const BuildOptions& options, const PassObserver& observer) {
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  if (!options.memory_limit.empty()) {
    spec.memory_limit = ParseMemoryLimit(options.memory_limit, spec, schedule.stages(spec));
  }
  Plan plan = GeneratePlan(spec);
  if (spec.memory_limit) CheckMemory(plan, spec);
  const LowerOptions lower = {
      .target = options.level, .overlap = options.overlap, .memory_limit = spec.memory_limit};
  return Lower(std::move(plan), spec.costs, lower, observer);
}

}  // namespace contraflow
