#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Runs a plan with random durations of all instructions, copies among them mostly instant or very
/// long. Returns the first rank that holds more at some moment than its predicted peak, else "".
inline std::string HeldAtAnyPace(const Plan& plan, const CostModel& costs, int rounds,
                                 std::mt19937_64* random) {
  const Simulation predicted = Simulate(plan, costs);
  const RecomputedCells recomputed(plan);
  for (int round = 0; round < rounds; ++round) {
    Timeline durations = predicted.timeline;
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Time most = IsHostCopy(plan.programs[r][i].op) ? 1 + (*random)() % 3 * 1000 : 20;
        durations.ranks[r][i] = {0, static_cast<Time>((*random)() % static_cast<uint64_t>(most))};
      }
    }
    const Simulation run = SimulateMeasured(plan, costs, {durations});
    for (int r = 0; r < plan.ranks; ++r) {
      const RankFigures& figures = predicted.ranks[static_cast<size_t>(r)];
      for (const Held& held : HeldOverTime(plan, costs, recomputed, run.timeline, r)) {
        if (held.bytes <= figures.peak_bytes && held.activations <= figures.peak_activations) {
          continue;
        }
        return "rank " + std::to_string(r) + " holds " + std::to_string(held.bytes) + " bytes, " +
               std::to_string(held.activations) + " activations at " + std::to_string(held.at) +
               ", its peaks are " + std::to_string(figures.peak_bytes) + " and " +
               std::to_string(figures.peak_activations);
      }
    }
  }
  return "";
}

}  // namespace contraflow
