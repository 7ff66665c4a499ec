#include "tools/contraflow-run/training.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"
#include "runtime/core/run.h"
#include "runtime/model/parameters.h"
#include "tools/contraflow-run/times.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {

HostCheck::HostCheck(const RunInput& input, uint64_t seed, std::function<void()> moves)
    : input_(input), reference_(input.plan, input.model, input.dataset, seed) {
  reference_.OnMove(std::move(moves));
}

Comparison HostCheck::Compare(int step, const StepResult& result, Run& run) {
  return CompareStep(input_.plan, step, result, run, reference_);
}

std::vector<StateBlock> HostCheck::State() {
  std::vector<StateBlock> blocks;
  for (int s = 0; s < input_.plan.stages; ++s) {
    for (StateBlock& block : StateOf(reference_.StageAt(s))) blocks.push_back(std::move(block));
  }
  return blocks;
}

namespace {

std::string Fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string Plural(int count, const std::string& noun) {
  const bool sibilant = noun.ends_with("h") || noun.ends_with("s");
  return FormatCount(count) + " " + noun + (count == 1 ? "" : sibilant ? "es" : "s");
}

}  // namespace

Training::Training(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check,
                   Job& job, Watch watch)
    : options_(options),
      input_(input),
      plan_(input.plan),
      model_(input.model),
      run_(run),
      check_(check),
      job_(job),
      watch_(std::move(watch)),
      checkpoints_(options, input, job),
      calibration_(input.plan) {
  if (!job.leads()) return;  // it may not have the programs of the others
  if (!options.calibrate.empty()) Calibration::CheckPlan(plan_);
  if (plan_.costs) times_.predicted = SimulatedTimes(plan_, *plan_.costs);
}

void Training::Train() {
  done_ = checkpoints_.Begin(run_, check_);
  first_ = done_ + 1;
  if (!options_.json) Say(Heading());
  for (int step = first_; step <= options_.steps && !Stopped() && difference_.empty(); ++step) {
    Step(step);
    const bool last = step == options_.steps || Stopped();
    if (difference_.empty() && checkpoints_.Due(step, last)) checkpoints_.Save(step, run_);
  }
  GatherEnd();
  if (job_.leads() && done_ >= first_ && options_.stamps) Calibrate();
  if (!options_.trace.empty() && job_.leads() && done_ >= first_) {
    WriteFile(options_.trace, WriteTrace(plan_, last_.timeline));
  }
  if (job_.leads()) Say(options_.json ? Document() : Summary());
  if (!difference_.empty()) throw JobError("--check: " + difference_);
}

void Training::Say(const std::string& text) const {
  if (job_.leads()) WriteFile("-", text);
}

void Training::Step(int step) {
  last_ = run_.Step(step);
  done_ = step;
  dropped_ += last_.dropped;
  if (job_.leads()) {
    // The first step also pays for first touches of memory; it counts only if it is the only one.
    if (step == first_ + 1) {
      times_.measured = {};
      calibration_.Clear();
    }
    if (options_.stamps) {
      AddTimes(plan_, last_.timeline, &times_.measured);
      calibration_.Add(last_.timeline);
    }
  }
  if (check_ != nullptr) Check(step);
  const double seconds = static_cast<double>(last_.duration) * 1e-9;
  const double tokens = static_cast<double>(TokensOfStep()) / std::max(seconds, 1e-9);
  if (options_.json && job_.leads()) Keep(step, seconds, tokens);
  const std::string number = std::to_string(step);
  const size_t width = std::to_string(options_.steps).size();
  const std::string line = "step " + std::string(width - number.size(), ' ') + number + "  loss " +
                           Fixed(last_.loss, 4) + "  " + Fixed(seconds * 1e3, 1) + " ms  " +
                           FormatCount(std::llround(tokens)) + " tokens/s" +
                           (model_.capacity_factor > 0 ? "  " + Dropped(last_.dropped) : "") + "\n";
  if (!options_.json) Say(line);
  if (options_.json && job_.leads() && isatty(STDERR_FILENO) != 0) std::fputs(line.c_str(), stderr);
}

/// Compares this process's devices with the reference; any process's difference ends all.
void Training::Check(int step) {
  const Comparison comparison = check_->Compare(step, last_, run_);
  compared_ += comparison.values;
  std::string first;
  for (std::string& difference : job_.Gather(comparison.difference)) {
    if (first.empty()) first = std::move(difference);
  }
  difference_ = job_.Broadcast(first);
}

void Training::Keep(int step, double seconds, double tokens) {
  Json row = Json::object();
  row["step"] = step;
  row["loss"] = last_.loss;
  row["ms"] = seconds * 1e3;
  row["tokens_per_second"] = tokens;
  row["dropped"] = last_.dropped;
  steps_.push_back(std::move(row));
}

/// What the report needs of all processes together, for the one that leads.
void Training::GatherEnd() {
  std::map<std::string, Digest> weights;
  const std::string mine = WriteDigests(ParameterDigests(SavedState(plan_, run_)));
  for (const std::string& bytes : job_.Gather(mine)) weights.merge(ReadDigests(bytes));
  weights_ = Hex(WeightsDigest(weights));
  if (plan_.level == Level::kBuffer) arenas_ = ArenasOf(plan_, run_, job_);
  if (check_ == nullptr) return;
  int64_t compared = 0;
  for (const std::string& count : job_.Gather(std::to_string(compared_))) {
    compared += std::stoll(count);
  }
  compared_ = compared;
}

/// What the steps say about the machine.
void Training::Calibrate() {
  times_.simulated = SimulatedTimes(plan_, calibration_.CostsOfPlan());
  times_.measured.bound = times_.simulated.bound;
  if (options_.calibrate.empty()) return;
  const std::string source = "measured: " + plan_.schedule + ", " + Plural(plan_.ranks, "rank") +
                             ", " + Plural(plan_.microbatches, "micro-batch") + ", model " +
                             model_.name + ", " + options_.device + ", " + options_.transport;
  WriteFile(options_.calibrate, WriteCosts(calibration_.CostsForCompiler(source)));
}

int64_t Training::ParameterCount() const {
  int64_t count = 0;
  for (int s = 0; s < plan_.stages; ++s) {
    const ParameterLayout layout = LayoutOfStage(model_, s, plan_.stages, {0, model_.experts});
    count += static_cast<int64_t>(layout.size);
  }
  return count;
}

int64_t Training::TokensOfStep() const {
  return int64_t{model_.tokens()} * plan_.microbatches * plan_.data_parallel *
         plan_.expert_parallel;
}

/// Which part of what the experts were asked for in a step they had no room for.
std::string Training::Dropped(int64_t dropped) const {
  const double visits = static_cast<double>(TokensOfStep()) * model_.layers * model_.top_k;
  return FormatPercent(static_cast<double>(dropped) / visits) + " dropped";
}

std::string Training::Devices() const {
  const int devices = static_cast<int>(DeviceCount(plan_));
  const bool gpu = options_.device == "cuda";
  std::string text = job_.processes() > 1
                         ? Plural(devices, "process") + " over " + options_.transport
                     : gpu ? Plural(devices, "virtual rank") + " on a GPU"
                           : Plural(devices, "thread");
  if (plan_.expert_parallel == 1) return text;
  text += " (" + Plural(plan_.ranks, "rank");
  if (plan_.data_parallel > 1) text += " x " + Plural(plan_.data_parallel, "replica");
  return text + " x " + FormatCount(plan_.expert_parallel) + " devices)";
}

std::string Training::Heading() const {
  std::string heading = plan_.schedule + ": " + Plural(plan_.ranks, "rank") + ", " +
                        Plural(plan_.stages, "stage") + ", " +
                        Plural(plan_.microbatches, "micro-batch");
  if (plan_.data_parallel > 1) heading += ", " + Plural(plan_.data_parallel, "replica");
  heading += "; " + Devices();
  if (options_.strict) heading += ", strict";
  heading += "\nmodel " + model_.name + ": " + Plural(model_.layers, "layer") + ", " +
             FormatCount(ParameterCount()) + " parameters; " + FormatCount(TokensOfStep()) +
             " tokens per step from " + input_.dataset.name;
  if (model_.capacity_factor > 0) {
    heading +=
        "; an expert takes " + FormatCount(Capacity(model_)) + " rows of a device and micro-batch";
  }
  heading += "\n";
  if (!checkpoints_.note().empty()) heading += checkpoints_.note() + "\n";
  return heading;
}

std::string Training::Summary() {
  std::string summary;
  if (Stopped()) summary += "\nstopped after step " + std::to_string(done_) + "\n";
  if (done_ >= first_ && options_.stamps) summary += "\n" + FormatTimes(plan_, times_);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto devices = static_cast<int>(DeviceCount(plan_));
  if (options_.device == "cpu" && job_.processes() == 1 && cores > 0 && devices > cores) {
    summary += std::to_string(devices) + " threads share " + Plural(cores, "core") +
               ": measured times include waiting for a core.\n";
  }
  if (plan_.level == Level::kBuffer) summary += "\n" + FormatArenas(arenas_);
  summary += "weights after step " + std::to_string(done_) + ": SHA-256 " + weights_ + "\n";
  if (check_ != nullptr && difference_.empty()) {
    summary += "check: " + FormatCount(compared_) +
               " losses, gradients and weights equal those without a pipeline, bit for bit" +
               check_->Note() + "\n";
  }
  return summary;
}

std::string Training::Document() {
  Json document = Json::object();
  document["schedule"] = plan_.schedule;
  document["ranks"] = plan_.ranks;
  document["stages"] = plan_.stages;
  document["microbatches"] = plan_.microbatches;
  document["data_parallel"] = plan_.data_parallel;
  document["expert_parallel"] = plan_.expert_parallel;
  document["device"] = options_.device;
  document["transport"] = options_.transport;
  document["processes"] = job_.processes();
  document["model"] = model_.name;
  document["layers"] = model_.layers;
  document["parameters"] = ParameterCount();
  document["first_step"] = first_;
  document["steps"] = std::move(steps_);
  document["dropped"] = dropped_;
  if (options_.stamps) TimesToJson(plan_, times_, &document);
  if (plan_.level == Level::kBuffer) ArenasToJson(arenas_, &document);
  document["weights_sha256"] = weights_;
  if (check_ != nullptr) {
    Json check = Json::object();
    check["ok"] = difference_.empty();
    check["compared"] = compared_;
    if (!difference_.empty()) check["difference"] = difference_;
    document["check"] = std::move(check);
  }
  return FormatJson(document);
}

}  // namespace contraflow
