#pragma once

#include "runtime/world.h"
#include "tools/run_options.h"

namespace contraflow {

/// Trains as one process of a job: meets the others, agrees with them, trains, and stops with them
/// if anything goes wrong anywhere. `options.transport` is tcp or mpi. Returns the exit code,
/// unless the job was stopped: then the process ends here. Throws Error where it cannot join the
/// job.
int TrainLaunched(const RunOptions& options, const World& world);

}  // namespace contraflow
