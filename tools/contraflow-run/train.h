#pragma once

#include "runtime/core/run.h"
#include "runtime/launch/world.h"
#include "tools/contraflow-run/check.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/options.h"

namespace contraflow {

/// Reads the plan, proves it, trains with it and reports: every rank a thread, or this process one
/// of those that a launcher started. Returns the exit code. Throws Error if --check found a
/// difference, or an input is wrong.
int Train(RunOptions options);

/// Throws Error, with the remedy, if this process is one of several that were launched, and so
/// cannot be a run of its own.
void RequireAlone(const RunOptions& options, const World& world);
/// Trains, in this process alone, and reports; a signal ends it after the step under way. `check`
/// is null without --check. Returns the exit code, unless there was a signal: then the process ends
/// by that.
int TrainAlone(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check);

}  // namespace contraflow
