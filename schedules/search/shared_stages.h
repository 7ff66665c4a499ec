#pragma once

#include "compiler/plan/plan.h"

namespace contraflow {

/// True if two routes have a stage on the same rank: then the rank adds to the same weight gradient
/// for micro-batches of both, and the order of these counts.
bool SharesStages(const Plan& frame);

/// The same order with its micro-batches numbered as they add to the weight gradient that routes
/// share, so that the sum is in ascending order. For micro-batches that cost the same, of
/// a compute plan whose routes share one stage.
Plan RenumberMicrobatches(Plan plan);

}  // namespace contraflow
