#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/core/progress.h"
#include "runtime/launch/control.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"

namespace contraflow {

/// A process of a job, of which there are others.
struct CustomProcess {
  const RankOrder& order;
  Control& control;
  Progress& progress;
  std::function<std::string(int process)> name;
};
/// Makes it in every process; `process` is null where this is the only one.
using MakeCustomTraining = std::function<std::unique_ptr<CustomTraining>(
    const CustomStages& stages, const CustomProcess* process)>;

/// On the host: all devices are threads of this process, or it is one of them.
MakeCustomTraining OnHost(const RunOptions& options);

/// Trains and reports; all processes of the job. Returns the exit code. Throws JobError if --check
/// found a difference.
int TrainCustom(const RunOptions& options, const RunInput& input, const MakeCustomTraining& make,
                bool on_gpu, const CustomProcess* process, Job& job);

}  // namespace contraflow
