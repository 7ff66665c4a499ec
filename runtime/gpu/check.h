#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/step.h"
#include "runtime/gpu/serial_run.h"
#include "runtime/host/reference_run.h"
#include "runtime/host/run.h"

namespace contraflow {

/// How a run on GPUs compares with the runs without a pipeline.
struct GpuComparison {
  int64_t values = 0;      ///< compared with those of the GPU, and found equal bit for bit
  std::string difference;  ///< the first one that is not, or is too far from the host's; "" if none
  /// Against the host's, in the Euclidean norm, relative: the whole gradient, and the largest of a
  /// loss or of one block of parameters, and which that is.
  double gradient = 0, largest = 0;
  std::string where;
};

/// Makes the tokens of a micro-batch visit these experts, [T x k], in place of those the router
/// prefers. Returns how far they were from that: the largest difference of a chosen expert's
/// probability from that of the one the router prefers in its place, relative to the latter.
double ChooseAs(const LayerShape& shape, const int32_t* choice, const LayerViews<float>& v);

/// Does the step that `run` has just done on `reference`, and compares every loss, how many tokens
/// were dropped, and on every device of this process every gradient and every updated weight, bit
/// for bit. Then, unless `host` is null, it does the step on it too, from the weights that the
/// GPU's step began with, as products see them there, and with the experts that tokens visited
/// there, each of which must be nearly as probable as the host's choice. `bound` is for the errors
/// of a model of two layers, and grows as roundings add up, with the square root of the depth:
/// losses and the whole gradient must be below it, single blocks of parameters below three times
/// that.
GpuComparison CompareGpuStep(const Plan& plan, int step, const StepResult& result, Run& run,
                             GpuSerialRun& reference, ReferenceRun* host, double bound = 1e-2);

}  // namespace contraflow
