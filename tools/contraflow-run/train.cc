#include "tools/contraflow-run/train.h"

#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/launch/world.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow-run/launched.h"
#include "tools/contraflow-run/training.h"
#include "tools/contraflow/exit.h"

namespace contraflow {
namespace {

/// The signal that asked us to stop, 0 if none has.
volatile std::sig_atomic_t stop_signal = 0;

void AskToStop(int signal) { stop_signal = signal; }

/// From here on the first Ctrl-C ends the training after the step under way, the second at once.
void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = AskToStop;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

/// Ends as the signal would have ended us, so that a calling shell or script knows.
void EndBySignal() {
  std::signal(stop_signal, SIG_DFL);
  std::raise(stop_signal);
}

int TrainThreaded(const RunOptions& options) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  ThreadedRun run(input.plan, input.model, input.dataset, options.seed,
                  {options.strict, Milliseconds(options.timeout)});
  std::optional<HostCheck> check;
  if (options.check) check.emplace(input, options.seed, std::function<void()>());
  return TrainAlone(options, input, run, check ? &*check : nullptr);
}

}  // namespace

void RequireAlone(const RunOptions& options, const World& world) {
  // The script of a SLURM job has the variables of a task, but only srun starts steps.
  const bool script = world.launcher == Launcher::kSrun && std::getenv("SLURM_STEP_ID") == nullptr;
  if (world.size == 1 || script) return;
  throw Error("--transport threads: " + std::to_string(world.size) +
              " processes were launched, and each would train on its own; use --transport " +
              (options.device == "cuda" ? "nccl" : "tcp or mpi") + ", or launch one");
}

int TrainAlone(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check) {
  Job job;
  Training training(options, input, run, check, job, {&stop_signal, {}});
  CatchSignals();
  training.Train();
  if (stop_signal != 0) EndBySignal();
  return kExitFine;
}

int Train(RunOptions options) {
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  if (options.transport.empty()) {
    options.transport = world.size == 1 ? "threads" : HostTransport(world);
  }
  if (options.transport != "threads") return TrainLaunched(options, world);
  RequireAlone(options, world);
  return TrainThreaded(options);
}

}  // namespace contraflow
