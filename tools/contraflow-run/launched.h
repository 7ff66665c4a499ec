#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/core/progress.h"
#include "runtime/core/run.h"
#include "runtime/launch/control.h"
#include "runtime/launch/world.h"
#include "tools/contraflow-run/check.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/options.h"

namespace contraflow {

/// What one process of a job trains with.
class LaunchedRun {
 public:
  virtual ~LaunchedRun() = default;
  virtual Run& run() = 0;
  /// Null without --check.
  virtual RunCheck* check() = 0;
  /// Behind the last step; all processes.
  virtual void Close() {}
};

/// Makes it, in every process of the job, once they have agreed. What is passed outlives it.
using MakeLaunchedRun = std::function<std::unique_ptr<LaunchedRun>(
    const RunInput& input, const RankOrder& order, Control& control, Progress& progress)>;

/// What suits the launcher where CPUs are joined: mpi where it started the processes, else tcp.
std::string HostTransport(const World& world);

/// Trains as one process of a job: meets the others, agrees with them, trains, and stops with them
/// if anything goes wrong anywhere. `options.transport` is tcp or mpi; or nccl, for which `make`
/// makes the run. Returns the exit code, unless the job was stopped: then the process ends here.
/// Throws Error where it cannot join the job.
int TrainLaunched(const RunOptions& options, const World& world, const MakeLaunchedRun& make = {});

}  // namespace contraflow
