#pragma once

#include <span>
#include <string>

#include "compiler/plan/schedule.h"

namespace contraflow {

/// Every schedule, in the order in which they are listed and compared: the published ones, then
/// `auto`. The rows live as long as the program.
std::span<const Schedule* const> Schedules();

/// The row of that name ("1f1b", "auto"). Throws Error with the known names and the nearest one.
const Schedule& FindSchedule(const std::string& name);

/// The compute-level plan of the spec's schedule, with the recompute that it asks for; a searched
/// plan comes with its costs and its provenance. Deterministic: equal specs give equal plans.
/// Checks the spec and asks the schedule first. Throws Error that says what is wrong and what would
/// do if the spec is out of range, if the schedule or the costs cannot have it, or if `auto` finds
/// nothing within its memory limit. What a published schedule holds is the caller's to hold against
/// that.
Plan GeneratePlan(const Spec& spec);
/// The same for a caller that follows a search and may stop it: then the plan is the best so far.
Plan GeneratePlan(const Spec& spec, const SearchControl& control);

/// True if the schedule of the spec fits its memory limit with --recompute auto. False where the
/// spec has no limit, or its costs do not say what a recomputed chunk holds.
bool FitsRecomputed(const Spec& spec, const SearchControl& control);

}  // namespace contraflow
