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
/// for bit. Then, unless `host` is null, it does the step on it too, from the weights that the
/// GPU's step began with, as products see them there, and with the experts that tokens visited
/// there, each of which must be nearly as probable as the host's choice. The relative error of each
/// loss and, in the Euclidean norm, of the gradient of each stage must be below `bound`, that of a
/// single block of it below three times that.
GpuComparison CompareGpuStep(const Plan& plan, int step, const StepResult& result, Run& run,
                             GpuReference& reference, ReferenceRun* host, double bound = 1e-2);

}  // namespace contraflow
