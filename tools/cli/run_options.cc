#include "tools/cli/run_options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>

#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr double kMaxTimeout = 1e6;
constexpr int kMaxSteps = 1'000'000'000;
/// Partitions of a GPU have multiples of so many SMs.
constexpr int kSmsStep = 8;

/// A positive number of steps.
int SmallNumber(const std::string& flag, int64_t value) {
  if (value < 1 || value > kMaxSteps) {
    throw UsageError(flag + ": must be in 1.." + std::to_string(kMaxSteps) + ", is " +
                     std::to_string(value));
  }
  return static_cast<int>(value);
}

/// Devices and transports that go together, and options that are only for one of them.
void CheckDevice(const CLI::App& app, const RunOptions& options) {
  if (options.device == "cpu") {
    if (options.transport == "nccl") {
      throw UsageError(
          "--transport nccl: links GPUs; use --transport mpi or tcp, or add --device cuda");
    }
    for (const char* const flag : {"--graph", "--no-graph", "--no-stamps", "--partition-sms"}) {
      if (app.count(flag) == 0) continue;
      throw UsageError(std::string(flag) + ": for a GPU only; leave it out, or add --device cuda");
    }
    return;
  }
  if (options.transport == "tcp" || options.transport == "mpi") {
    throw UsageError("--transport " + options.transport +
                     ": connects CPUs; GPUs are connected by nccl, virtual ranks on one GPU by "
                     "threads; leave it out to let the launcher decide");
  }
  if (options.strict) {
    throw UsageError("--strict: for --device cpu only; leave it out");
  }
  if (app.count("--partition-sms") > 0 &&
      (options.partition_sms < kSmsStep || options.partition_sms % kSmsStep != 0)) {
    throw UsageError("--partition-sms: must be a multiple of " + std::to_string(kSmsStep) +
                     ", is " + std::to_string(options.partition_sms));
  }
  if (options.stamps) return;
  for (const char* const flag : {"--trace", "--calibrate"}) {
    if (app.count(flag) == 0) continue;
    throw UsageError(std::string(flag) + ": needs the times that --no-stamps leaves out");
  }
}

void CheckOptions(const RunOptions& options) {
  for (const auto& [flag, file] :
       {std::pair("--trace", &options.trace), std::pair("--calibrate", &options.calibrate)}) {
    if (*file != "-") continue;
    throw UsageError(std::string(flag) + ": must be a file; standard output is for the report");
  }
  if (options.steps < 1) {
    throw UsageError("--steps: must be at least 1, is " + std::to_string(options.steps));
  }
  if (options.checkpoint_keep < 1) {
    throw UsageError("--checkpoint-keep: must be at least 1, is " +
                     std::to_string(options.checkpoint_keep));
  }
  if (options.capacity) CheckCapacity(*options.capacity);
  for (const auto& [flag, seconds] :
       {std::pair("--timeout", options.timeout),
        std::pair("--rendezvous-timeout", options.rendezvous_timeout)}) {
    if (seconds > 0 && seconds <= kMaxTimeout) continue;
    throw UsageError(std::string(flag) + ": must be above 0 and at most 1000000 seconds");
  }
}

}  // namespace

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

std::optional<RunOptions> ParseRunOptions(const std::vector<std::string>& words) {
  RunOptions options;
  std::optional<int64_t> seed;
  std::optional<int64_t> every, resume_step;
  bool graph = false, no_graph = false, no_stamps = false;
  CLI::App app(
      "Execute a plan: train a small MoE language model with it. Ranks are threads of this\n"
      "process; under mpirun, srun or torchrun each process is one device of the plan: a rank or,\n"
      "if it was compiled with --expert-parallel or --data-parallel, a part of one.\n",
      "contraflow-run");
  app.get_formatter()->column_width(34);
  app.get_formatter()->label("REQUIRED", "(required)");
  app.get_formatter()->label("OPTIONS", "OPTIONS");
  AddPlan(&app, &options.plan);
  AddChoice(&app, "--device", &options.device, "cpu|cuda", "where to compute (default: cpu)");
  AddChoice(&app, "--transport", &options.transport, "threads|tcp|mpi|nccl",
            "how ranks exchange messages (default: under a launcher nccl for GPUs\n"
            "and mpi or tcp for CPUs; else threads, which with\n--device cuda share one GPU)");
  app.add_option("--model", options.model,
                 "model file (runtime/model/README.md), or preset: default or tiny\n(default: "
                 "default); must be that of the plan, if it was compiled with one")
      ->type_name("FILE|PRESET");
  AddNumber(&app, "--capacity", &options.capacity, "X",
            "each expert takes at most X times its even share of a device's\n"
            "tokens; the rest are dropped (default: the model's\ncapacity_factor)");
  app.add_option("--data", options.data,
                 "text to train on (default: a licence text found on this machine)")
      ->type_name("FILE");
  AddInteger(&app, "--steps", &options.steps, "N",
             "optimizer steps of the whole training, with those before\na checkpoint it resumes "
             "from (default: 10)");
  app.add_flag("--check", options.check,
               "train the same steps without a pipeline too, and compare every\n"
               "loss, gradient and weight bit for bit");
  app.add_option("--trace", options.trace,
                 "write the measured timeline of the last step as a Chrome/Perfetto\ntrace")
      ->type_name("FILE");
  app.add_option("--calibrate", options.calibrate,
                 "write measured times to a cost file for contraflow compile")
      ->type_name("FILE");
  AddInteger(&app, "--seed", &seed, "N",
             "seed of the weights and of the choice of text (default: 1)");
  app.add_flag("--strict", options.strict,
               "make every message wait for its receiver (rendezvous), as in the\nproof");
  app.add_flag("--graph", graph, "on a GPU: capture a step once and replay it (the default)");
  app.add_flag("--no-graph", no_graph, "on a GPU: issue every step anew");
  app.add_flag("--no-stamps", no_stamps,
               "on a GPU: do not time instructions (timing one takes two small\nkernels)");
  AddInteger(&app, "--partition-sms", &options.partition_sms, "N",
             "on a GPU: SMs per rank, a multiple of 8 (default: an equal share)");
  AddNumber(&app, "--timeout", &options.timeout, "SECONDS",
            "give up if no rank makes progress for this long (default: 120)");
  app.add_option("--checkpoint", options.checkpoint, "folder for checkpoints; saves one at the end")
      ->type_name("DIR");
  AddInteger(&app, "--checkpoint-every", &every, "N", "also save a checkpoint after every N steps");
  AddInteger(&app, "--checkpoint-keep", &options.checkpoint_keep, "K",
             "how many checkpoints to keep (default: 2)");
  app.add_flag(
      "--resume", options.resume,
      "resume from the newest checkpoint in --checkpoint DIR; start from the beginning if\n"
      "there is none yet");
  AddInteger(&app, "--resume-step", &resume_step, "N",
             "resume from the checkpoint of step N in --checkpoint DIR");
  app.add_option(
         "--rank-order", options.rank_order,
         "how launched processes map to devices, fastest dimension first:\nep (member of an "
         "expert group), dp (replica), pp (rank)\n(default: ep-dp-pp)")
      ->type_name("ORDER");
  AddNumber(&app, "--rendezvous-timeout", &options.rendezvous_timeout, "SECONDS",
            "how long launched processes wait for each other at the start\n(default: 60)");
  app.add_option("--secret-file", options.secret_file,
                 "file with the job's secret, which keeps strangers out (default: the\nenvironment "
                 "variable CONTRAFLOW_SECRET)")
      ->type_name("FILE");
  AddJson(&app, &options.json);
  app.set_version_flag("--version", "contraflow-run " CF_VERSION, "print the version");
  app.footer("Example: contraflow-run plan.json --steps 20 --check");
  if (!Parse(&app, words)) return std::nullopt;
  options.seed = static_cast<uint64_t>(seed.value_or(1));
  for (const auto& [flag, file] :
       {std::pair("--trace", &options.trace), std::pair("--calibrate", &options.calibrate)}) {
    if (app.count(flag) == 0 || !file->empty()) continue;
    throw UsageError(std::string(flag) + ": must be a file, is empty");
  }
  if (options.checkpoint.empty()) {
    // A variable of the shell that is not set must not train for nothing.
    if (app.count("--checkpoint") > 0) throw UsageError("--checkpoint: must be a folder, is empty");
    for (const char* const flag :
         {"--resume", "--resume-step", "--checkpoint-every", "--checkpoint-keep"}) {
      if (app.count(flag) == 0) continue;
      throw UsageError(std::string(flag) +
                       " needs --checkpoint DIR, the folder of the checkpoints");
    }
  }
  if (every) options.checkpoint_every = SmallNumber("--checkpoint-every", *every);
  if (resume_step) {
    options.resume_step = SmallNumber("--resume-step", *resume_step);
    options.resume = true;
  }
  if (graph && no_graph) throw UsageError("--graph and --no-graph exclude each other");
  options.graph = !no_graph;
  options.stamps = !no_stamps;
  CheckOptions(options);
  CheckDevice(app, options);
  return options;
}

}  // namespace contraflow
