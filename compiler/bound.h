#pragma once

#include "compiler/plan.h"

namespace contraflow {

/// A proven lower bound on the makespan of every schedule with this placement (routes), these costs
/// and any memory: built from F, B, W, BW and FB or, where the plan has layers, from components
/// that may overlap in any way. Throws Error if the costs do not fit the plan.
Time LowerBound(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
