#pragma once

#include <cstdint>
#include <optional>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Result of an exhaustive search over all schedules of one tiny instance.
struct ExactResult {
  /// False where the search had more states to visit than it was allowed; `makespan` is then that
  /// of the best schedule so far.
  bool finished = false;
  std::optional<Time> makespan;  ///< least of all schedules; nothing where no schedule fits
  int64_t states = 0;            ///< visited
};

/// The least makespan of every schedule with this plan's routes, these costs and at most
/// `memory_limit` on each rank, counted as --memory-limit does, that runs those R that its programs
/// have (nothing else of them matters): built from F, R, B, W, BW and FB in the timing model of
/// Simulate, messages of an edge in the order in which they are made. Exponential: for some ten
/// chunks. Shares no code with the bounds.
ExactResult ExactMakespan(const Plan& plan, const CostModel& costs,
                          std::optional<int64_t> memory_limit, int64_t most_states);

/// Like ExactMakespan, where every cell that is not recomputed is on the host between its F and its
/// B, and copies take no time: no schedule that offloads is shorter, whatever its copies take.
ExactResult ExactOffloaded(const Plan& plan, const CostModel& costs,
                           std::optional<int64_t> memory_limit, int64_t most_states);

}  // namespace contraflow
