#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/progress.h"
#include "runtime/host/run.h"
#include "runtime/launch/control.h"
#include "runtime/launch/world.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/custom.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/training.h"

namespace contraflow {

/// Reads the plan, proves it, trains with it and reports: every rank a thread, or this process one
/// of those that a launcher started. Returns the exit code. Throws Error if --check found a
/// difference, or an input is wrong.
int Train(RunOptions options);

/// Throws Error, with the remedy, if this process is one of several that were launched, and so
/// cannot be a run of its own.
void RequireAlone(const RunOptions& options, const World& world);
/// The signal that asked the training to stop; 0 if none has.
extern std::atomic<int> stop_signal;
/// From here on a signal ends the training after the step under way: the first Ctrl-C, of which the
/// second ends it at once; or what batch systems send before they take the machine away, after
/// which the grace period ends it at once.
void CatchSignals(std::chrono::milliseconds grace);
/// Ends as that signal would have ended the process, so that a calling shell or script knows.
void EndBySignal(int unused);

/// Ends this process, in which a rank hangs.
[[noreturn]] void EndOfHang(const std::exception_ptr& error);

/// Trains, in this process alone, and reports; a signal ends it after the step under way. `check`
/// is null without --check. Returns the exit code, unless there was a Ctrl-C: then the process ends
/// by that.
int TrainAlone(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check);

/// Training of one process of a job.
class LaunchedRun {
 public:
  virtual ~LaunchedRun() = default;
  virtual Run& run() = 0;
  /// Null without --check.
  virtual RunCheck* check() = 0;
  /// After the last step; all processes.
  virtual void Close() {}
};

/// Makes it, in every process of the job, once they have agreed. All arguments must outlive it.
using MakeLaunchedRun = std::function<std::unique_ptr<LaunchedRun>(
    const RunInput& input, const RankOrder& order, Control& control, Progress& progress)>;
/// That, and its like for custom stages; null: on the host.
struct MakeLaunched {
  MakeLaunchedRun run;
  MakeCustomTraining custom;
};

/// Trains custom stages in this process alone, and reports. Returns the exit code.
int TrainCustomAlone(const RunOptions& options, const MakeCustomTraining& make, bool on_gpu);

/// Prints what the job at options.ask does. Throws Error if none runs there, or it does not tell.
int Ask(const RunOptions& options);

/// Trains as one process of a job: meets the others, agrees with them, trains, and stops with them
/// if anything goes wrong anywhere. `options.transport` is shm; or nccl, for which `make` makes the
/// run. Returns the exit code, unless the job was stopped: then the process ends here.
/// Throws Error where it cannot join the job.
int TrainLaunched(const RunOptions& options, const World& world, const MakeLaunched& make = {});

/// Like Train, for --device cuda. CUDA's libraries take half a second to load, so they are in a
/// program of their own, contraflow-run-cuda, which this one becomes; `argv` is for that. Throws
/// Error, before anything is written, if this build has no CUDA or the machine no device.
int TrainOnCuda(const RunOptions& options, char** argv);

}  // namespace contraflow
