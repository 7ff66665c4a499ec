#include "tools/run_train.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "compiler/error.h"
#include "compiler/file.h"
#include "compiler/json.h"
#include "compiler/plan_io.h"
#include "compiler/simulate.h"
#include "compiler/trace_io.h"
#include "compiler/verify.h"
#include "runtime/check.h"
#include "runtime/executor.h"
#include "runtime/reference_run.h"
#include "runtime/text.h"
#include "runtime/threaded_run.h"
#include "tools/exit.h"
#include "tools/report.h"
#include "tools/run_memory.h"
#include "tools/run_times.h"
#include "tools/table.h"

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

void RequireSoundPlan(const Plan& plan, const std::string& path) {
  const std::vector<Finding> findings = Verify(plan);
  if (findings.empty()) return;
  std::string text = path + ": the plan is not sound and is not executed:";
  for (const Finding& finding : findings) text += "\n  " + ToString(finding, plan);
  throw Error(text);
}

/// Says before the training, not after it, that the trace cannot be written.
void RequireWritableFolder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return;
  throw Error(path + ": cannot be written: " + std::generic_category().message(errno) +
              "; does its folder exist?");
}

std::string Fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

int64_t ParameterCount(const Plan& plan, ThreadedRun& run) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  int64_t count = 0;
  for (int s = 0; s < plan.stages; ++s) {
    Stage& stage = run.At({0, 0, holders[static_cast<size_t>(s)][0]}).StageAt(s);
    const size_t experts = stage.expert_gradients().size();  // of one member
    const auto others = static_cast<size_t>(plan.expert_parallel - 1);
    count += static_cast<int64_t>(stage.parameters().size() + others * experts);
  }
  return count;
}

std::string Plural(int count, const std::string& noun) {
  return FormatCount(count) + " " + noun + (count == 1 ? "" : noun.ends_with("h") ? "es" : "s");
}

Model ModelOf(const RunOptions& options, const Plan& plan) {
  Model model = ReadModel(options.model);
  if (options.capacity) model.capacity_factor = static_cast<float>(*options.capacity);
  return FitModel(std::move(model), plan.stages, plan.layers, plan.expert_parallel);
}

/// One training with everything that is said about it on the way and at the end.
class Training {
 public:
  Training(const RunOptions& options, const Plan& plan)
      : options_(options),
        plan_(plan),
        model_(ModelOf(options, plan)),
        text_(ReadText(options.data, model_)),
        run_(plan_, model_, text_, options.seed, NetworkOptions(options)) {
    if (options.check) reference_.emplace(plan_, model_, text_, options.seed);
    if (plan.costs) {
      predicted_.emplace();
      AddTimes(plan, Simulate(plan, *plan.costs).timeline, &*predicted_);
    }
  }

  int Run() {
    if (!options_.json) WriteFile("-", Heading());
    CatchSignals();
    for (int step = 1; step <= options_.steps && stop_signal == 0 && difference_.empty(); ++step) {
      Step(step);
    }
    if (!options_.trace.empty()) {
      WriteFile(options_.trace, WriteTrace(plan_, last_.timeline));
    }
    WriteFile("-", options_.json ? Document() : Summary());
    if (!difference_.empty()) throw Error("--check: " + difference_);
    if (stop_signal != 0) EndBySignal();
    return kExitFine;
  }

 private:
  static ThreadNetwork::Options NetworkOptions(const RunOptions& options) {
    return {options.strict,
            std::chrono::milliseconds(static_cast<int64_t>(std::ceil(options.timeout * 1000)))};
  }

  void Step(int step) {
    last_ = run_.Step(step);
    ++done_;
    dropped_ += last_.dropped;
    // The first step also pays for first touches of memory; it counts only if it is the only one.
    if (done_ == 2) measured_ = {};
    AddTimes(plan_, last_.timeline, &measured_);
    if (reference_) {
      const Comparison comparison = CompareStep(plan_, step, last_, run_, *reference_);
      compared_ += comparison.values;
      difference_ = comparison.difference;
    }
    const double seconds = static_cast<double>(last_.duration) * 1e-9;
    const double tokens = static_cast<double>(TokensOfStep()) / std::max(seconds, 1e-9);
    if (options_.json) Keep(step, seconds, tokens);
    const std::string number = std::to_string(step);
    const size_t width = std::to_string(options_.steps).size();
    const std::string line = "step " + std::string(width - number.size(), ' ') + number +
                             "  loss " + Fixed(last_.loss, 4) + "  " + Fixed(seconds * 1e3, 1) +
                             " ms  " + FormatCount(std::llround(tokens)) + " tokens/s" +
                             (model_.capacity_factor > 0 ? "  " + Dropped(last_.dropped) : "") +
                             "\n";
    if (!options_.json) WriteFile("-", line);
    if (options_.json && isatty(STDERR_FILENO) != 0) std::fputs(line.c_str(), stderr);
  }

  void Keep(int step, double seconds, double tokens) {
    auto row = std::make_unique<JsonObject>();
    row->Add("step", {int64_t{step}});
    // JSON has no NaN: a training that has diverged has no loss.
    row->Add("loss", std::isfinite(last_.loss) ? Json(last_.loss) : Json());
    row->Add("ms", {seconds * 1e3});
    row->Add("tokens_per_second", {tokens});
    row->Add("dropped", {last_.dropped});
    steps_.push_back({std::move(row)});
  }

  int Threads() const { return plan_.ranks * plan_.data_parallel * plan_.expert_parallel; }

  int64_t TokensOfStep() const {
    return int64_t{model_.tokens()} * plan_.microbatches * plan_.data_parallel *
           plan_.expert_parallel;
  }

  /// Which part of what the experts were asked for in a step they had no room for.
  std::string Dropped(int64_t dropped) const {
    const double visits = static_cast<double>(TokensOfStep()) * model_.layers * model_.top_k;
    return FormatPercent(static_cast<double>(dropped) / visits) + " dropped";
  }

  std::string Heading() {
    std::string heading = plan_.schedule + ": " + Plural(plan_.ranks, "rank") + ", " +
                          Plural(plan_.stages, "stage") + ", " +
                          Plural(plan_.microbatches, "micro-batch");
    if (plan_.data_parallel > 1) heading += ", " + Plural(plan_.data_parallel, "replica");
    heading += "; " + Plural(Threads(), "thread");
    if (plan_.expert_parallel > 1) {
      heading += " (" + Plural(plan_.ranks, "rank");
      if (plan_.data_parallel > 1) heading += " x " + Plural(plan_.data_parallel, "replica");
      heading += " x " + FormatCount(plan_.expert_parallel) + " experts' devices)";
    }
    if (options_.strict) heading += ", strict";
    heading += "\nmodel " + model_.name + ": " + Plural(model_.layers, "layer") + ", " +
               FormatCount(ParameterCount(plan_, run_)) + " parameters; " +
               FormatCount(TokensOfStep()) + " tokens a step from " + text_.name;
    if (model_.capacity_factor > 0) {
      heading += "; an expert takes " + FormatCount(Capacity(model_)) +
                 " rows of a device and micro-batch";
    }
    heading += "\n";
    return heading;
  }

  std::string Summary() {
    std::string summary;
    if (stop_signal != 0) summary += "\nstopped after step " + std::to_string(done_) + "\n";
    summary += "\n" + FormatTimes(plan_, predicted_, measured_);
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (cores > 0 && Threads() > cores) {
      summary += std::to_string(Threads()) + " threads share " + Plural(cores, "core") +
                 ": measured times include waiting for one.\n";
    }
    if (plan_.level == Level::kBuffer) summary += "\n" + FormatArenas(ArenasOf(plan_, run_));
    if (reference_ && difference_.empty()) {
      summary += "check: " + FormatCount(compared_) +
                 " losses, gradients and weights equal those without a pipeline, bit for bit\n";
    }
    return summary;
  }

  std::string Document() {
    JsonObject document;
    document.Add("schedule", {plan_.schedule});
    document.Add("ranks", {int64_t{plan_.ranks}});
    document.Add("stages", {int64_t{plan_.stages}});
    document.Add("microbatches", {int64_t{plan_.microbatches}});
    document.Add("data_parallel", {int64_t{plan_.data_parallel}});
    document.Add("expert_parallel", {int64_t{plan_.expert_parallel}});
    document.Add("model", {model_.name});
    document.Add("layers", {int64_t{model_.layers}});
    document.Add("parameters", {ParameterCount(plan_, run_)});
    document.Add("steps", {std::move(steps_)});
    document.Add("dropped", {dropped_});
    TimesToJson(plan_, predicted_, measured_, &document);
    if (plan_.level == Level::kBuffer) ArenasToJson(ArenasOf(plan_, run_), &document);
    if (reference_) {
      auto check = std::make_unique<JsonObject>();
      check->Add("ok", {difference_.empty()});
      check->Add("compared", {compared_});
      if (!difference_.empty()) check->Add("difference", {difference_});
      document.Add("check", {std::move(check)});
    }
    return FormatJson({std::make_unique<JsonObject>(std::move(document))});
  }

  const RunOptions& options_;
  const Plan& plan_;
  const Model model_;
  const Text text_;
  ThreadedRun run_;
  std::optional<ReferenceRun> reference_;
  std::optional<RunTimes> predicted_;
  RunTimes measured_;
  StepResult last_;
  Json::Array steps_;  // for --json
  int done_ = 0;
  int64_t compared_ = 0, dropped_ = 0;
  std::string difference_;
};

}  // namespace

int Train(const RunOptions& options) {
  const Plan plan = ReadPlanFile(options.plan);
  try {
    CheckExecutable(plan);
  } catch (const Error& error) {
    throw Error(options.plan + ": " + error.what());
  }
  RequireSoundPlan(plan, options.plan);
  if (!options.trace.empty()) RequireWritableFolder(options.trace);
  return Training(options, plan).Run();
}

}  // namespace contraflow
