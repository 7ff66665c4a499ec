#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "compiler/plan.h"

namespace contraflow {

/// Called after every pass with its name and the plan it made.
using PassObserver = std::function<void(std::string_view pass, const Plan& plan)>;

/// Names of the passes, in order; for --dump-after.
std::span<const std::string_view> PassNames();

/// Lowers a compute order to `target`, verifying after every pass. Throws Error if `plan` is
/// unsound or the target is not reachable; InternalError if a pass broke it. The costs are kept in
/// the plan.
Plan Lower(Plan plan, const CostModel& costs, Level target, const PassObserver& observer = {});

}  // namespace contraflow
