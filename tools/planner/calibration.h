#pragma once

#include <string>
#include <string_view>

#include "tools/planner/configuration.h"

namespace contraflow {

/// A run of the request's model on its GPUs whose step somebody has measured.
struct CalibrationRun {
  PlanRequest request;  ///< with the run's GPUs, batch and tokens
  Configuration configuration;
  std::string schedule = "1f1b", recompute = "none";
  int chunks = 0;      ///< stages a rank; 0 is the schedule's own
  double seconds = 0;  ///< of a step
};

/// Reads "tokens/s/gpu=1664,tp=4,pp=4,schedule=interleaved-1f1b,chunks=2" or "step=2.1s,..". Other
/// keys are ep, etp, micro-batch, zero and recompute, and gpus, global-batch and seq where they
/// differ from the request's. Throws Error that says what is wrong.
CalibrationRun ParseCalibrationRun(std::string_view text, const PlanRequest& request);

/// Returns the factor of all efficiencies with which the predicted step is the measured one, and
/// sets `predicted` to the step in seconds without it. Throws Error if there is none.
double ScaleOf(const CalibrationRun& run, double* predicted);

/// Scales the efficiencies of a request so that the run in `text` is predicted as it was measured,
/// and says so in `scaled_by`. Throws Error.
void ScaleToRun(const std::string& text, PlanRequest* request);

}  // namespace contraflow
