#include "tools/cli/run_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "runtime/model/model.h"
#include "tools/cli/completion.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"

namespace contraflow {
namespace {

constexpr double kMaxTimeout = 1e6;
constexpr int kMaxSteps = 1'000'000'000;
/// Partitions of a GPU have multiples of this many SMs.
constexpr int kSmsStep = 8;

/// A positive number of steps.
int SmallNumber(const std::string& flag, int64_t value) {
  if (value < 1 || value > kMaxSteps) {
    throw UsageError(FieldOf(flag) + ": must be in 1.." + std::to_string(kMaxSteps) + ", is " +
                     std::to_string(value));
  }
  return static_cast<int>(value);
}

/// Devices and transports that go together, and options that are only for one of them.
void CheckDevice(const CLI::App& app, const RunOptions& options) {
  if (options.device == "cpu") {
    if (options.transport == "nccl") {
      throw UsageError("`transport` nccl: links GPUs; leave it out, or add `device` cuda");
    }
    for (const char* const flag : {"--graph", "--no-graph", "--stamps", "--partition-sms",
                                   "--one-sided", "--matmul-choices"}) {
      if (app.count(flag) == 0) continue;
      throw UsageError(FieldOf(flag) + ": for a GPU only; leave it out, or add `device` cuda");
    }
    return;
  }
  if (options.transport == "shm") {
    throw UsageError("`transport` " + options.transport +
                     ": connects CPUs; GPUs are connected by nccl, virtual ranks on one GPU by "
                     "threads; leave it out to let the launcher decide");
  }
  for (const char* const flag : {"--strict", "--validation"}) {
    if (app.count(flag) == 0) continue;
    throw UsageError(FieldOf(flag) + ": for `device` cpu only; leave it out");
  }
  if (options.one_sided && options.transport == "threads") {
    throw UsageError(
        "`one_sided`: is for GPUs connected by nccl; with `transport` threads leave it out");
  }
  if (app.count("--partition-sms") > 0 &&
      (options.partition_sms < kSmsStep || options.partition_sms % kSmsStep != 0)) {
    const std::string step = std::to_string(kSmsStep);
    throw UsageError("`partition_sms`: must be a multiple of " + step + ", at least " + step +
                     ", is " + std::to_string(options.partition_sms));
  }
  if (options.stamps > 0 && options.stamps <= options.steps) return;
  for (const char* const flag : {"--trace", "--calibrate"}) {
    if (app.count(flag) == 0) continue;
    throw UsageError(FieldOf(flag) + ": needs times, and with `stamps` " +
                     std::to_string(options.stamps) + " no step is timed");
  }
}

void CheckOptions(const RunOptions& options) {
  for (const auto& [flag, file] :
       {std::pair("--trace", &options.trace), std::pair("--calibrate", &options.calibrate),
        std::pair("--jsonl", &options.jsonl),
        std::pair("--matmul-choices", &options.matmul_choices)}) {
    if (*file != "-") continue;
    throw UsageError(FieldOf(flag) + ": must be a file; standard output is for the report");
  }
  if (options.steps < 1) {
    throw UsageError("`steps`: must be at least 1, is " + std::to_string(options.steps));
  }
  if (options.checkpoint_keep < 1) {
    throw UsageError("`checkpoint_keep`: must be at least 1, is " +
                     std::to_string(options.checkpoint_keep));
  }
  if (options.capacity) CheckCapacity(*options.capacity);
  const auto check_range = [](const char* flag, std::optional<double> value, double low,
                              double high) {
    if (!value || (*value >= low && *value <= high)) return;
    throw UsageError(FieldOf(flag) + ": must be in " + FormatReal(low) + ".." + FormatReal(high) +
                     ", is " + FormatReal(*value));
  };
  check_range("--lr", options.lr, 0, 10);
  check_range("--clip", options.clip, 0, kMostClip);
  check_range("--peak-flops", options.peak_flops, 1, 1e18);
  HeldOut(options);
  for (const auto& [flag, seconds] :
       {std::pair("--timeout", options.timeout),
        std::pair("--rendezvous-timeout", options.rendezvous_timeout)}) {
    if (seconds > 0 && seconds <= kMaxTimeout) continue;
    throw UsageError(FieldOf(flag) + ": must be above 0 and at most 1000000 seconds");
  }
}

/// Stages of the user's own know no model, text or checkpoints of ours.
void CheckStages(const CLI::App& app, const RunOptions& options) {
  if (options.stages.empty()) {
    if (app.count("--stages") > 0) throw UsageError("`stages`: must be a file, is empty");
    if (app.count("--stage-options") == 0) return;
    throw UsageError("`stage_options` needs `stages` FILE, which it is for");
  }
  for (const char* const flag :
       {"--model", "--capacity", "--data", "--lr", "--clip", "--validation", "--validate-every",
        "--validate-batches", "--peak-flops", "--calibrate", "--checkpoint", "--checkpoint-every",
        "--checkpoint-keep", "--resume", "--resume-step", "--matmul-choices"}) {
    if (app.count(flag) == 0) continue;
    throw UsageError(FieldOf(flag) + ": is not for custom stages; leave it out, or `stages`");
  }
}

}  // namespace

std::optional<double> HeldOut(const RunOptions& options) {
  const std::string& text = options.validation;
  double part = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), part);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (part > 0 && part < 1) return part;
  throw UsageError("`validation`: a part of the data must be above 0 and below 1, is " + text +
                   "; write ./" + text + " if it is a file");
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

std::optional<RunOptions> ParseRunOptions(const std::vector<std::string>& words) {
  RunOptions options;
  std::optional<int64_t> seed;
  std::optional<int64_t> every, resume_step;
  std::optional<int64_t> log_every, validate_every, validate_batches;
  std::string grace = "30s", completion;
  bool graph = false, no_graph = false;
  std::optional<int64_t> stamps;
  CLI::App app(
      "Execute a plan: train a small MoE language model with it. Ranks are threads of this\n"
      "process; under mpirun, srun or torchrun each process is one device of the plan: a rank or,\n"
      "if it was compiled with --expert-parallel or --data-parallel, a part of one.\n",
      "contraflow-run");
  UseHelpFormatter(&app);
  app.get_formatter()->label("OPTIONS", "OPTIONS");
  AddPlan(&app, &options.plan)->required(false);
  AddChoice(&app, "--device", &options.device, "cpu|cuda", "where to compute (default: cpu)");
  AddChoice(
      &app, "--transport", &options.transport, "threads|shm|tcp|mpi|nccl",
      "how ranks exchange messages (default: under a launcher nccl for GPUs\nand shm for CPUs, "
      "else "
      "threads). shm is shared memory of one machine.\nThreads with --device cuda share one GPU. "
      "tcp and mpi mean shm");
  app.add_option("--model", options.model,
                 "model file, or preset: default or tiny\n(default: "
                 "default); must be that of the plan, if it was compiled with one")
      ->type_name("FILE|PRESET");
  app.add_option("--stages", options.stages,
                 "train stages of your own in place of the model: a shared library")
      ->type_name("FILE");
  app.add_option("--stage-options", options.stage_options, "text for those stages")
      ->type_name("TEXT");
  AddNumber(&app, "--capacity", &options.capacity, "X",
            "each expert takes at most X times its even share of a device's\n"
            "tokens; the rest are dropped (default: the model's\ncapacity_factor)");
  app.add_option("--data", options.data,
                 "text to train on, or tokens of contraflow tokenize (default: a\nlicence text "
                 "found on this machine)")
      ->type_name("FILE");
  AddNumber(&app, "--lr", &options.lr, "X",
            "highest learning rate (default: the model's learning_rate)");
  AddNumber(&app, "--clip", &options.clip, "X",
            "limit of the gradient norm; 0: none (default: the model's clip)");
  app.add_option(
         "--validation", options.validation,
         "also report the loss on this text, or on the last part of the data\n(0.1 holds out a "
         "tenth)")
      ->type_name("FILE|PART");
  AddInteger(&app, "--validate-every", &validate_every, "N",
             "validate after every N steps and the last (default: 100)");
  AddInteger(&app, "--validate-batches", &validate_batches, "N",
             "validate on the micro-batches of N steps (default: 4)");
  AddInteger(&app, "--steps", &options.steps, "N",
             "optimizer steps of the whole training, including those before a resumed\ncheckpoint "
             "(default: 10)");
  app.add_flag("--check", options.check,
               "train the same steps without a pipeline too, and compare every\n"
               "loss, gradient and weight bit for bit");
  AddInteger(&app, "--log-every", &log_every, "N",
             "print a line every N steps, for the first and the last (default: 1)");
  app.add_option("--jsonl", options.jsonl, "write one JSON object per step; --resume continues it")
      ->type_name("FILE");
  AddNumber(&app, "--peak-flops", &options.peak_flops, "X",
            "peak FLOP/s of a device, for the model FLOPs utilisation in --jsonl");
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
  AddInteger(&app, "--stamps", &stamps, "N",
             "on a GPU: time the instructions of every N-th step, each by two small\nkernels; 0: "
             "never (default: 0, with --trace or --calibrate 1)");
  app.add_flag(
      "--one-sided", options.one_sided,
      "over nccl: send messages without kernels, which frees their SMs (NCCL\n2.30.7 or newer)");
  AddInteger(&app, "--partition-sms", &options.partition_sms, "N",
             "on a GPU: SMs per rank, a multiple of 8 (default: an equal share)");
  app.add_option(
         "--matmul-choices", options.matmul_choices,
         "on a GPU: take the algorithm for each matrix product from FILE; time\nand add the "
         "missing ones")
      ->type_name("FILE");
  AddSeconds(
      &app, "--timeout", &options.timeout,
      "give up if no rank makes progress for this long (default: 120). Only a\nlauncher ends "
      "a call of --stages that never returns");
  app.add_option("--checkpoint", options.checkpoint, "folder for checkpoints; saves one at the end")
      ->type_name("DIR");
  AddInteger(&app, "--checkpoint-every", &every, "N", "also save a checkpoint after every N steps");
  AddInteger(&app, "--checkpoint-keep", &options.checkpoint_keep, "K",
             "how many checkpoints to keep (default: 2)");
  app.add_flag("--resume", options.resume,
               "resume from the newest checkpoint in --checkpoint DIR; start from the\nbeginning "
               "if there is none yet");
  AddInteger(&app, "--resume-step", &resume_step, "N",
             "resume from the checkpoint of step N in --checkpoint DIR");
  app.add_option("--rank-order", options.rank_order,
                 "how launched processes map to devices, fastest dimension first:\nep (member of "
                 "an expert group), dp (replica), pp (rank)\n(default: ep-dp-pp)")
      ->type_name("ORDER");
  AddSeconds(&app, "--rendezvous-timeout", &options.rendezvous_timeout,
             "how long launched processes wait for each other at the start\n(default: 60)");
  app.add_option(
         "--secret-file", options.secret_file,
         "file with the secret of the job, against foreign connections (default:\nthe environment "
         "variable CONTRAFLOW_SECRET)")
      ->type_name("FILE");
  app.add_option(
         "--grace", grace,
         "time after SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or SIGXCPU to finish the\nstep and save a "
         "checkpoint (default: 30s)")
      ->type_name("500ms|30s|2m");
  app.add_option("--ask", options.ask,
                 "print the state of the job at this address, and end: the step, and the\n"
                 "instruction and peer of each rank; needs the job's secret")
      ->type_name("HOST:PORT");
  AddChoice(&app, "--completion", &completion, "bash|man",
            "print a script that completes options in bash, or the manual page");
  AddJson(&app, &options.json);
  app.set_version_flag("-V,--version", "contraflow-run " CF_VERSION, "print the version");
  app.footer(
      "Example: contraflow-run plan.json --steps 20 --check\n\n"
      "Exit codes: 0 success; 1 bad input, or a check failed; 2 bad command line; 70 a bug in\n"
      "contraflow; 75 a rank was lost or hung (go on with --resume); 76 asked to stop, and "
      "stopped\n"
      "after a step, which is saved where there is a --checkpoint.");
  if (!Parse(&app, words)) return std::nullopt;
  if (!completion.empty()) {
    WriteFile("-", completion == "man" ? WriteManual(app, CF_VERSION) : WriteCompletion(app, {}));
    return std::nullopt;
  }
  if (!options.ask.empty()) return options;
  if (options.plan.empty()) throw UsageError("PLAN is required; see contraflow-run --help");
  CheckStages(app, options);
  options.seed = static_cast<uint64_t>(seed.value_or(1));
  for (const auto& [flag, file] :
       {std::pair("--trace", &options.trace), std::pair("--calibrate", &options.calibrate),
        std::pair("--jsonl", &options.jsonl), std::pair("--validation", &options.validation)}) {
    if (app.count(flag) == 0 || !file->empty()) continue;
    throw UsageError(FieldOf(flag) + ": must be a file, is empty");
  }
  // A variable of the shell that is not set must not train for nothing.
  if (app.count("--checkpoint") > 0 && options.checkpoint.empty()) {
    throw UsageError("`checkpoint`: must be a folder, is empty");
  }
  for (const char* const flag :
       {"--resume", "--resume-step", "--checkpoint-every", "--checkpoint-keep"}) {
    if (!options.checkpoint.empty() || app.count(flag) == 0) continue;
    throw UsageError(FieldOf(flag) + " needs `checkpoint` DIR, the folder of the checkpoints");
  }
  if (every) options.checkpoint_every = SmallNumber("--checkpoint-every", *every);
  if (resume_step) {
    options.resume_step = SmallNumber("--resume-step", *resume_step);
    options.resume = true;
  }
  if (log_every) options.log_every = SmallNumber("--log-every", *log_every);
  for (const char* const flag : {"--validate-every", "--validate-batches"}) {
    if (app.count(flag) > 0 && options.validation.empty()) {
      throw UsageError(FieldOf(flag) + " needs `validation`, the text to validate on");
    }
  }
  if (validate_every) options.validate_every = SmallNumber("--validate-every", *validate_every);
  if (validate_batches) {
    options.validate_batches = SmallNumber("--validate-batches", *validate_batches);
  }
  options.grace = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(ParseDuration("--grace", grace)));
  if (graph && no_graph) throw UsageError("`graph` and `no_graph` exclude each other");
  options.graph = !no_graph;
  if (options.device == "cuda") {
    const bool needed = !options.trace.empty() || !options.calibrate.empty();
    const int64_t timed = stamps.value_or(needed ? 1 : 0);
    options.stamps = timed == 0 ? 0 : SmallNumber("--stamps", timed);
  }
  CheckOptions(options);
  if (options.transport == "tcp" || options.transport == "mpi") options.transport = "shm";
  CheckDevice(app, options);
  options.plan = PlanPath(options.plan);
  return options;
}

}  // namespace contraflow
