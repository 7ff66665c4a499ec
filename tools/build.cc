#include "tools/build.h"

#include "compiler/error.h"
#include "compiler/simulate.h"
#include "tools/table.h"

namespace contraflow {
namespace {

void CheckMemory(const Plan& plan, const Spec& spec) {
  const bool bytes = spec.costs.memory && spec.costs.memory->activation_bytes > 0;
  const Simulation simulation = Simulate(plan, spec.costs);
  int worst = 0;
  const auto peak = [&](int rank) -> int64_t {
    const RankFigures& figures = simulation.ranks[static_cast<size_t>(rank)];
    return bytes ? figures.peak_bytes : figures.peak_activations;
  };
  for (int rank = 1; rank < plan.ranks; ++rank) {
    if (peak(rank) > peak(worst)) worst = rank;
  }
  if (peak(worst) <= *spec.memory_limit) return;
  const int index = simulation.ranks[static_cast<size_t>(worst)].peak_index;
  const Program& program = plan.programs[static_cast<size_t>(worst)];
  const std::string unit = bytes ? " bytes" : " activations";
  throw Error(plan.schedule + " does not fit --memory-limit: rank " + std::to_string(worst) +
              " holds " + FormatCount(peak(worst)) + unit + " during instruction " +
              std::to_string(index) + " of its compute order (" +
              ToString(program[static_cast<size_t>(index)]) + "), the limit is " +
              FormatCount(*spec.memory_limit) + unit +
              "; raise it, or take a schedule that holds less");
}

}  // namespace

Plan BuildPlan(Spec spec, const std::string& memory_limit, Level level,
               const PassObserver& observer) {
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  if (!memory_limit.empty()) {
    spec.memory_limit = ParseMemoryLimit(memory_limit, spec, schedule.stages(spec));
  }
  Plan plan = GeneratePlan(spec);
  if (spec.memory_limit) CheckMemory(plan, spec);
  const LowerOptions options = {.target = level,
                                .overlap = spec.costs.derived.value_or(Overlap::kAll),
                                .memory_limit = spec.memory_limit};
  return Lower(std::move(plan), spec.costs, options, observer);
}

}  // namespace contraflow
