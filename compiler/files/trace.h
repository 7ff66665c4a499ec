#pragma once

#include <string>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Chrome/Perfetto trace JSON of a plan's timeline: pid = rank, a track (tid) for each lane, and
/// for each transfer that overlaps another one of its lane a track more ("send to 1 (2)"), so that
/// no two slices of a track overlap. Slices are named after the operation alone ("F", "DISPATCH_F")
/// and have the rest in "args": index, stage, microbatch, layer, back_stage, back_microbatch (of
/// an FB), peer, and cost, what the plan's costs say that it takes, in their unit. Flow arrows go
/// from each SEND to its RECV; a counter for each rank shows the bytes of its activations or, where
/// the costs give none, how many there are; "otherData" is the head of the plan. Times in
/// microseconds (for Unit::kUnit one unit is shown as one millisecond); a message that takes no
/// time is drawn a nanosecond long, since arrows end in slices only. Same input, same bytes. The
/// timeline must be of the plan: a span for every instruction of every rank. Format: "Trace Event
/// Format", Google, 2016.
std::string WriteTrace(const Plan& plan, const Timeline& timeline);

}  // namespace contraflow
