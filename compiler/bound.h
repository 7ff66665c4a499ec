#pragma once

#include "compiler/plan.h"

namespace contraflow {

/// A proven lower bound on the makespan of every schedule with this placement (routes), these costs
/// and any memory, built from F, B, W, BW and FB.
Time LowerBound(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
