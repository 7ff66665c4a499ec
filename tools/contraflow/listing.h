#pragma once

#include <string>

#include "tools/pictures/picture.h"

namespace contraflow {

/// A plan as text: what it is, and the program of each rank in the view, one instruction a line
/// with its predicted times, then where its values lie. Without a simulation (the plan is not
/// sound) there are no times, and all instructions are shown.
std::string WriteListing(const Plan& plan, const CostModel& costs, const Simulation* simulation,
                         const View& view);

}  // namespace contraflow
