#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// A lower bound on the makespan of every order for the routes of `frame` (its programs do not
/// matter) and every partition of the layers into its stages, within the memory of the spec. No
/// more than `enough`, beyond which nobody wants to know.
Time BoundOfPartitions(const Spec& spec, LayerStages* layers, const Plan& frame, Time enough);

}  // namespace contraflow
