#pragma once

#include <span>
#include <string>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/published/schedule.h"

namespace contraflow {

struct SearchControl;  // schedules/search/search_control.h

/// Every schedule, in the order in which they are listed and compared: the published ones, then
/// `auto`. The rows live as long as the program.
std::span<const Schedule* const> Schedules();

/// The name of the schedule that papers and PyTorch spell so: "DualPipe", "zb_v", "ZBVZeroBubble",
/// "Interleaved1F1B". Returns any other text as it is.
std::string ScheduleName(const std::string& spelling);

/// The row of that name ("1f1b", "auto"). Throws Error with the known names and the nearest one.
const Schedule& FindSchedule(const std::string& name);

/// The compute order alone, at level compute: no messages, nothing proven; Compile does the rest.
/// With the recompute that the spec asks for; a searched plan comes with its costs and its
/// provenance. Deterministic: equal specs give equal plans. Checks the spec and asks the schedule
/// first. Throws Error that says what is wrong and what would do if the spec is out of range, if
/// the schedule or the costs cannot have it, or if `auto` finds nothing within its memory limit.
/// The caller compares what a published schedule holds with the limit.
Plan GeneratePlan(const Spec& spec);
/// Like the overload above, for a caller that follows a search and may stop it: then the plan is
/// the best so far.
Plan GeneratePlan(const Spec& spec, const SearchControl& control);

/// True if the schedule of the spec fits its memory limit with Recompute::Choice::kAuto. False
/// where the spec has no limit, or its costs do not say what a recomputed chunk holds.
bool FitsRecomputed(const Spec& spec, const SearchControl& control);

}  // namespace contraflow
