#pragma once

#include <cstdint>
#include <string>

#include "runtime/reference_run.h"
#include "runtime/threaded_run.h"

namespace contraflow {

/// How a run compares with the run without a pipeline.
struct Comparison {
  int64_t values = 0;      ///< compared and found equal, bit for bit
  std::string difference;  ///< the first one: where it is, and both values; "" if there is none
};

/// Does the step that `run` has just done on the reference too, and compares every loss, how many
/// tokens were dropped, and on every device that has a copy of a stage every gradient and every
/// updated parameter it has.
Comparison CompareStep(const Plan& plan, int step, const StepResult& result, ThreadedRun& run,
                       ReferenceRun& reference);

}  // namespace contraflow
