#pragma once

#include "tools/run_options.h"

namespace contraflow {

/// Reads the plan, proves it, trains with it and reports. Returns the exit code: 1 if --check found
/// a difference. Throws Error if an input is wrong.
int Train(const RunOptions& options);

}  // namespace contraflow
