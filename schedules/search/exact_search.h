#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedules/search/search.h"

namespace contraflow {

/// Result of a look at all schedules of a small problem.
struct ExactSearch {
  std::vector<Program> programs;  ///< of each rank, shorter than asked for; empty: none found
  Time makespan = 0;              ///< theirs
  /// All schedules have been looked at: none is shorter than these programs or, where there are
  /// none, than what was asked for.
  bool complete = false;
};

/// True where SearchExactly takes the frame: it has few chunks.
bool TakesExactly(const Plan& frame);

/// Branch and bound over every schedule of the frame's routes that is shorter than `below`, where
/// each rank holds no more than its room (none given: anything), micro-batches in any order, with
/// an R in each chunk of the stages `recomputed`; ends at one of `bound`, and after about `budget`
/// instructions of the work. The same on every machine. Costs of pairs, of full backwards and of
/// links are all minded.
ExactSearch SearchExactly(const Plan& frame, const CostModel& costs,
                          const std::vector<int64_t>& rooms, const std::vector<int>& recomputed,
                          Time below, Time bound, int64_t budget, SearchWork* work);

}  // namespace contraflow
