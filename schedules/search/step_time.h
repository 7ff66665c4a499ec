#pragma once

#include <cstdint>
#include <optional>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// True where a step may take another time than its compute order: reductions and optimizer steps
/// belong to it, and components (SearchOptions::components) take the time that they do.
bool LongerThanOrder(const CostModel& costs, const SearchOptions& options);

/// How long a step of this compute order takes: all of it that belongs to a step, of components
/// that overlap within `limit` if they are asked for and the costs have some.
Time StepTime(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
              const SearchOptions& options);

}  // namespace contraflow
