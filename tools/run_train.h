#pragma once

#include "tools/run_options.h"

namespace contraflow {

/// Reads the plan, proves it, trains with it and reports: every rank a thread, or this process one
/// of those that a launcher started. Returns the exit code. Throws Error if --check found a
/// difference, or an input is wrong.
int Train(RunOptions options);

}  // namespace contraflow
