#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan.h"
#include "compiler/spec.h"

namespace contraflow {

/// The plan of a compute order with an R directly before the B, BW or FB of every chunk of these
/// stages (ascending). None of them may have one yet.
Plan InsertRecompute(Plan plan, const std::vector<int>& stages);

/// The stages whose recompute makes every rank of a compute order hold at most `limit` bytes, as
/// --memory-limit counts them, for the least time of R that some choice on one rank after the other
/// takes (of stages that a rank holds many of, nearly the least). Those that do most where all are
/// too few.
std::vector<int> StagesToFit(const Plan& plan, const CostModel& costs, int64_t limit);

/// The compute order with every R that holds up its backward in idle time before that, where there
/// is some that is long enough, and as long as that makes the step shorter. No rank comes to hold
/// more than `limit` by it, or, without one, more than the fullest rank does as it is.
Plan HoistRecompute(Plan plan, const CostModel& costs, std::optional<int64_t> limit);

/// GeneratePlan for a spec with `recompute`: of the orders that the schedule makes within the
/// limit, without one and for costs that have R in the backward, the one with the shortest step
/// that fits, or, where none does, the shortest. Throws Error if the stages do not exist, or if
/// there is a memory limit and the costs give no bytes.
Plan GenerateRecomputed(const Spec& spec);

}  // namespace contraflow
