#pragma once

#include <string>

#include "compiler/plan/plan.h"
#include "runtime/model/model.h"
#include "tools/cli/run_options.h"

namespace contraflow {

/// A training with fewer ranks.
struct SmallerJob {
  Plan plan;
  Model model;  ///< as many layers as before
};

/// The same training with the most ranks below those of the plan for which its schedule has a plan:
/// the same model, micro-batches, replicas and expert groups, so the same data in each step, and
/// the plan's own costs, its layers spread over fewer stages. Throws Error, with what stands
/// against each number of ranks, if there is none.
SmallerJob ShrinkJob(const Plan& plan, const RunOptions& options);

}  // namespace contraflow
