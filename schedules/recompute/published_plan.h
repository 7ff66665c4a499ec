#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/published/schedule.h"

namespace contraflow {

/// The plan of a published schedule for costs of its stages, with the recompute and the offloading
/// of the spec, within its limit and its devices where the schedule heeds these. With a free choice
/// never longer than without. Throws as GeneratePlan does.
Plan PlanOfStages(const Schedule& schedule, const Spec& spec);

}  // namespace contraflow
