#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search_control.h"

namespace contraflow {

/// A plan that was searched, and how long its step takes.
struct FoundPlan {
  Plan plan;
  Time step = 0;
};

/// The shortest step that is found for a spec with layers in one placement of so many chunks
/// (Spec::chunks, with a placement that is no choice): partition and order. Takes about the budget
/// of the spec. Throws Error if nothing fits.
FoundPlan SearchShape(const Spec& of, const SearchControl& control);

}  // namespace contraflow
