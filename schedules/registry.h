#pragma once

#include <span>
#include <string>

#include "compiler/plan/schedule.h"

namespace contraflow {

/// Every schedule, in the order in which they are listed and compared.
std::span<const Schedule* const> Schedules();

/// Throws Error with the known names and the nearest one.
const Schedule& FindSchedule(const std::string& name);

/// Checks the spec, asks the schedule and generates. Throws Error if it does not fit.
Plan GeneratePlan(const Spec& spec);

}  // namespace contraflow
