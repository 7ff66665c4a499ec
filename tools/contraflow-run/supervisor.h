#pragma once

#include <string>
#include <vector>

#include "tools/cli/run_options.h"

namespace contraflow {

/// --restarts: runs this program again, without that option, as the processes of a training, and
/// all of them once more, with --resume, when one was lost. `words` are the command line that was
/// read into `options`.
///
/// Without a launcher every device of the plan is a process of this machine; under one each process
/// of the job supervises the one that takes its place. These have the same standard streams, end
/// with this one whatever ends it, and get the signals that it gets.
///
/// A process was lost if a signal ended it that did not come from here, or it ended with kExitLost.
/// Then the others have Control::kStopBound to end. A new checkpoint, on disk or in memory, starts
/// the count of restarts again. Returns the exit code of the last run, kExitLost where one was lost
/// and neither a restart nor a plan with fewer ranks is left. Throws Error if an input is wrong or
/// nothing can be started.
int Supervise(const RunOptions& options, const std::vector<std::string>& words);

}  // namespace contraflow
