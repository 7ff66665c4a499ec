#pragma once

#include <span>
#include <string>

#include "compiler/plan/schedule.h"

namespace contraflow {

/// Every schedule, in the order in which they are listed and compared.
std::span<const Schedule* const> Schedules();

/// The schedule of that name, "dualpipe". Throws Error with the known names and the nearest one.
const Schedule& FindSchedule(const std::string& name);

/// The compute order alone, at level compute: no messages, nothing proven, the memory limit kept by
/// what is searched alone. Compile does the rest. Throws Error if the spec is out of range or the
/// schedule does not take it.
Plan GeneratePlan(const Spec& spec);

}  // namespace contraflow
