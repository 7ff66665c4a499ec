#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/host/reference_run.h"
#include "runtime/host/run.h"

namespace contraflow {

/// How a run compares with the run without a pipeline.
struct Comparison {
  int64_t values = 0;      ///< compared and found equal, bit for bit
  std::string difference;  ///< the first one: where it is, and both values; "" if there is none
};

/// Results of a run without a pipeline.
struct ExpectedStep {
  std::vector<float> losses;  ///< [replica][member][micro-batch]
  int64_t dropped = 0;
  std::vector<Stage*> stages;  ///< with all experts; together they are the model
};

/// `loss of replica 0 member 1, micro-batch 3`: of the one at that place among those of a step.
std::string NameOfLoss(const Plan& plan, size_t place);

/// Compares every loss and how many tokens were dropped (in the process that knows them), and on
/// every device of this process every gradient and every updated parameter it has.
Comparison CompareStep(const Plan& plan, int step, const StepResult& result, Run& run,
                       const ExpectedStep& expected);

/// Does the step that `run` has just done on the reference too, and compares them so.
Comparison CompareStep(const Plan& plan, int step, const StepResult& result, Run& run,
                       ReferenceRun& reference);

}  // namespace contraflow
