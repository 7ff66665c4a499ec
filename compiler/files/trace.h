#pragma once

#include <string>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Chrome/Perfetto trace JSON of a plan's timeline: pid = rank, tid = lane, complete events named
/// as in the plan, flow arrows from each SEND to its RECV. Times in microseconds (for Unit::kUnit
/// one unit is shown as one millisecond). Same input, same bytes. The timeline must be of the plan:
/// a span for every instruction of every rank. Format: "Trace Event Format", Google, 2016.
std::string WriteTrace(const Plan& plan, const Timeline& timeline);

}  // namespace contraflow
