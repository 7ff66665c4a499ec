#pragma once

#include <cstdint>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// The order with the routes of `frame` in which each micro-batch begins when the one before it has
/// ended. A rank has to hold all its chunks of a route between the last F and the first B of any
/// micro-batch, so no order of these routes holds less.
Plan SerialOrder(const Plan& frame);

/// What that order holds on its fullest rank, in bytes or, where the costs give none, activations;
/// with every chunk recomputed or none. The least that any order of these routes can do with.
/// Throws Error if chunks are recomputed and the costs do not say what they hold meanwhile.
int64_t SerialPeak(const Plan& frame, const CostModel& costs, bool recomputed);

}  // namespace contraflow
