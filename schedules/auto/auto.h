#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search/search_control.h"

namespace contraflow {

/// The plan of `auto` for a spec: the shortest step that its budget finds over all shapes of the
/// spec, never longer with a larger budget. Throws as GeneratePlan does.
Plan SearchPlan(const Spec& spec, const SearchControl& control);

}  // namespace contraflow
