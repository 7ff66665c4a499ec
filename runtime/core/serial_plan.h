#pragma once

#include "compiler/plan/plan.h"

namespace contraflow {

/// Returns the training of a plan without a pipeline: the same stages, on the same devices, on the
/// same micro-batches, but one after the other. Each copy of a stage adds up its weight gradients
/// in the order of the plan (SerialOrder), so that every run of the plan must give the same bits.
/// Its level is comm or, where the plan has components, component with lanes. `plan` is sound
/// (Verify) and has messages.
Plan SerialPlan(const Plan& plan);

}  // namespace contraflow
