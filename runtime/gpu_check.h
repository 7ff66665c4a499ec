#pragma once

#include <cstdint>
#include <string>

#include "runtime/gpu_reference.h"
#include "runtime/reference_run.h"
#include "runtime/run.h"

namespace contraflow {

/// How a run on GPUs compares with the runs without a pipeline.
struct GpuComparison {
  int64_t values = 0;      ///< compared with those of the GPU, and found equal bit for bit
  std::string difference;  ///< the first one that is not, or is too far from the host's; "" if none
  double largest = 0;      ///< largest relative error of a loss or gradient against the host's
  std::string where;       ///< of what
};

/// Does the step that `run` has just done on `reference`, and compares every loss, how many tokens
/// were dropped, and on every device of this process every gradient and every updated weight, bit
/// for bit; then on `host`, unless it is null, from the weights that the step began with, and
/// compares losses and gradients: the relative error of each block of parameters, in the Euclidean
/// norm, must be below `bound`.
GpuComparison CompareGpuStep(const Plan& plan, int step, const StepResult& result, Run& run,
                             GpuReference& reference, ReferenceRun* host, double bound = 1e-2);

}  // namespace contraflow
