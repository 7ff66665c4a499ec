#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/launch/process_run.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"

namespace contraflow {

/// Makes a training in every process of a job; `process` is null where this is the only one.
using MakeCustomTraining = std::function<std::unique_ptr<CustomTraining>(
    const CustomStages& stages, const HostProcess* process)>;

/// On the host: all devices are threads of this process, or it is one of them.
MakeCustomTraining OnHost(const RunOptions& options);

/// Trains and reports; all processes of the job. Returns the exit code. Throws JobError if --check
/// found a difference.
int TrainCustom(const RunOptions& options, const RunInput& input, const MakeCustomTraining& make,
                bool on_gpu, const HostProcess* process, Job& job);

}  // namespace contraflow
