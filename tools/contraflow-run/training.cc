#include "tools/contraflow-run/training.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "runtime/core/bytes.h"
#include "runtime/host/run.h"
#include "runtime/model/parameters.h"
#include "tools/cli/exit.h"
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

std::vector<StateBlock> HostCheck::State() { return StateOf(reference_.stage()); }

namespace {

std::string Fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

/// Whether it is known when instructions ran.
bool IsTimed(const Timeline& timeline) {
  return std::ranges::any_of(timeline.ranks, [](const auto& spans) { return !spans.empty(); });
}

std::vector<int> LayersOfStages(const Plan& plan, const Model& model) {
  std::vector<int> layers;
  for (int s = 0; s < plan.stages; ++s) {
    const LayerRange range = LayersOfStage(model, s, plan.stages);
    layers.push_back(range.last - range.first);
  }
  return layers;
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
      calibration_(input.plan),
      replay_(input.plan, options.device == "cuda"),
      stragglers_(input.plan, LayersOfStages(input.plan, input.model)) {
  if (!options.calibrate.empty() && !MeasureParts() && job.leads()) Calibration::CheckPlan(plan_);
  if (!job.leads()) return;  // it may not have the programs of the others
  output_.emplace(STDOUT_FILENO);
  if (options.json && isatty(STDERR_FILENO) != 0) progress_.emplace(STDERR_FILENO);
  if (plan_.costs) times_.predicted = SimulatedTimes(plan_, *plan_.costs);
}

int Training::Train() {
  done_ = checkpoints_.Begin(run_, check_);
  first_ = done_ + 1;
  if (job_.leads() && !options_.jsonl.empty()) file_.emplace(options_.jsonl, done_);
  if (!options_.json && output_) output_->Say(Heading());
  for (int step = first_; step <= options_.steps && difference_.empty(); ++step) {
    // All processes begin a step together, or end together after the one before.
    if (job_.Barrier() || Stopped()) asked_ = true;
    if (asked_ && !begun_) break;
    begun_ = !asked_ && MayBeginAhead(step + 1) && run_.BeginAhead(step + 1);
    Step(step);
    if (difference_.empty()) checkpoints_.AfterStep(step, step == options_.steps, run_);
  }
  asked_ = asked_ && done_ < options_.steps;
  if (asked_ && done_ >= first_) checkpoints_.AfterStep(done_, true, run_);
  const std::string unsaved = checkpoints_.Finish();
  GatherEnd();
  if (timed_ > 0) Calibrate();
  if (!options_.trace.empty() && timed_ > 0)
    WriteFile(options_.trace, WriteTrace(plan_, timeline_));
  progress_.reset();
  const bool printed =
      !output_ || output_->Finish(options_.json ? Document() : Summary(), [this] { job_.Move(); });
  if (!difference_.empty()) throw JobError("--check: " + difference_);
  if (!unsaved.empty()) throw JobError(WithFlags(unsaved));
  if (!printed) return kExitInput;
  return asked_ ? kExitStopped : kExitFine;
}

bool Training::ValidatesAfter(int step) const {
  return input_.validation && (step % options_.validate_every == 0 || step == options_.steps);
}

/// Whether nothing asks for the state between the step before and this one.
bool Training::MayBeginAhead(int step) const {
  return step <= options_.steps && check_ == nullptr && options_.calibrate.empty() &&
         !ValidatesAfter(step - 1) && !checkpoints_.DueAfter(step - 1);
}

/// From the next step on, and anew. False if the devices cannot.
bool Training::MeasureParts() {
  bool all = true;
  for (const Device& device : run_.devices()) {
    PartTimes* const parts = run_.At(device).MeasureParts();
    all = all && parts != nullptr;
    if (parts != nullptr) parts->Clear();
  }
  return all;
}

void Training::Step(int step) {
  // The first step also pays for first touches of memory; it counts only if it is the only one.
  if (step == first_ + 1 && !options_.calibrate.empty()) MeasureParts();
  last_ = run_.Step(step);
  done_ = step;
  dropped_ += last_.dropped;
  if (job_.leads()) {
    if (IsTimed(last_.timeline)) {
      if (timed_ == first_) {
        times_.measured = {};
        calibration_.Clear();
        replay_.Clear();
        stragglers_.Clear();
      }
      timed_ = step;
      timeline_ = last_.timeline;
      AddTimes(plan_, timeline_, &times_.measured);
      calibration_.Add(timeline_);
      replay_.Add(timeline_);
      stragglers_.Add(timeline_);
    }
  }
  if (check_ != nullptr) Check(step);
  std::optional<double> validation;
  if (ValidatesAfter(step) && difference_.empty()) {
    validation = Validate(*input_.validation, options_.validate_batches, step, run_);
  }
  if (job_.leads()) Tell(step, validation);
}

/// Says what a step gave.
void Training::Tell(int step, std::optional<double> validation) {
  const double seconds = static_cast<double>(last_.duration) * 1e-9;
  const double tokens = static_cast<double>(TokensOfStep()) / std::max(seconds, 1e-9);
  if (file_ || options_.json) {
    Json row = RowOf(step, seconds, tokens, validation);
    if (file_) file_->Add(row);
    if (options_.json) steps_.push_back(std::move(row));
  }
  if (TerminalWidth() > 0) plot_.Add(last_.loss);
  const bool last = step == options_.steps || (Stopped() && !begun_) || !difference_.empty();
  if (step % options_.log_every != 0 && step != first_ && !last) return;
  const std::string number = std::to_string(step);
  const size_t width = std::to_string(options_.steps).size();
  const std::string line = "step " + std::string(width - number.size(), ' ') + number + "  loss " +
                           Fixed(last_.loss, 4) + "  " + Fixed(seconds * 1e3, 1) + " ms  " +
                           FormatCount(std::llround(tokens)) + " tokens/s" +
                           (model_.clip > 0 ? "  norm " + Fixed(last_.gradient_norm, 4) : "") +
                           (validation ? "  validation " + Fixed(*validation, 4) : "") +
                           (model_.capacity_factor > 0 ? "  " + Dropped(last_.dropped) : "") + "\n";
  if (progress_) progress_->Say(line);
  if (!options_.json && output_) output_->Say(line);
}

/// Compares this process's devices with the reference; any process's difference ends all.
void Training::Check(int step) {
  const Comparison comparison = check_->Compare(step, last_, run_);
  compared_ += comparison.values;
  difference_ = job_.AnyOf(comparison.difference);
}

/// A step in JSON; the times come last.
Json Training::RowOf(int step, double seconds, double tokens, std::optional<double> validation) {
  Json row = Json::object();
  row["step"] = step;
  row["loss"] = last_.loss;
  row["learning_rate"] = LearningRate(model_, step);
  if (model_.clip > 0) row["grad_norm"] = last_.gradient_norm;
  row["dropped"] = last_.dropped;
  if (validation) row["validation_loss"] = *validation;
  row["ms"] = seconds * 1e3;
  row["tokens_per_second"] = tokens;
  const double flops = FlopsOfToken() * tokens;
  row["flops_per_second"] = flops;
  if (options_.peak_flops) {
    row["mfu"] = flops / (*options_.peak_flops * static_cast<double>(DeviceCount(plan_)));
  }
  if (IsTimed(last_.timeline)) {
    RunTimes times;
    AddTimes(plan_, last_.timeline, &times);
    row["bubble_ratio"] = times.bubble_ratio();
  }
  return row;
}

/// Work of the model for a token, forward and backward, whatever is computed again: 6 for each
/// parameter in a product that it visits, and 12 for each number of a query and key that meet.
double Training::FlopsOfToken() const {
  const double d = model_.width, layers = model_.layers;
  const double visited =
      4 * d * d + d * model_.experts + 3 * d * model_.top_k * model_.expert_width;
  return 6 * (layers * visited + d * model_.vocabulary) + 12 * layers * d * model_.sequence;
}

/// Gathers the report's needs of all processes together, for the one that leads.
void Training::GatherEnd() {
  std::map<std::string, Digest> weights;
  const std::string mine = ByteWriter().PutByName(ParameterDigests(SavedState(plan_, run_))).Take();
  for (const std::string& bytes : job_.Gather(mine)) {
    weights.merge(ByteReader(bytes, "the digests of weights are").TakeByName<Digest>());
  }
  weights_ = Hex(WeightsDigest(weights));
  if (plan_.level == Level::kBuffer) arenas_ = ArenasOf(plan_, run_, job_);
  if (!options_.calibrate.empty()) parts_ = GatherParts(run_, job_);
  if (check_ == nullptr) return;
  int64_t compared = 0;
  for (const std::string& count : job_.Gather(ByteWriter().Put(compared_).Take())) {
    compared += ByteReader(count, "the number of values compared is").Take<int64_t>();
  }
  compared_ = compared;
}

/// Learns from the steps about the machine.
void Training::Calibrate() {
  times_.simulated = replay_.Times(calibration_.CostsOfPlan());
  times_.measured.bound = times_.simulated.bound;
  if (options_.calibrate.empty()) return;
  const std::string source = plan_.schedule + ", " + Plural(plan_.ranks, "rank") + ", " +
                             Plural(plan_.microbatches, "micro-batch") + ", model " + model_.name +
                             ", " + options_.device + ", " + options_.transport;
  if (parts_.empty()) {
    const CostModel costs = calibration_.CostsForCompiler("measured: " + source);
    return WriteFile(options_.calibrate, WriteCosts(costs));
  }
  // Which of them gets a core that they share is chance.
  const std::vector<double> speeds =
      SharedCores() > 0 ? std::vector<double>() : SpeedsOf(parts_, model_, plan_.ranks);
  if (!speeds.empty()) parts_ = AtOneSpeed(std::move(parts_), speeds);
  CostModel costs = CostsByLayer(plan_, model_, parts_, calibration_);
  for (const double speed : speeds) costs.ranks.push_back({.speed = speed, .memory_bytes = {}});
  WriteFile(options_.calibrate, WriteLayerTimes(costs, model_, parts_, source));
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
  if (plan_.layers == 0 && plan_.costs && !plan_.costs->partition.empty() &&
      model_.partition.empty()) {
    heading += "the plan is for " + FormatPartition(plan_.costs->partition) +
               " layers, which are not this model's: its stages share the layers evenly\n";
  }
  if (!checkpoints_.note().empty()) heading += checkpoints_.note() + "\n";
  return heading;
}

/// How many cores the threads share, if there are more threads; else 0.
int Training::SharedCores() const {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const bool threads = options_.device == "cpu" && job_.processes() == 1;
  return threads && static_cast<int>(DeviceCount(plan_)) > cores ? cores : 0;
}

/// None where it is chance which thread waits for a core.
std::vector<Straggler> Training::SlowRanks() const {
  return SharedCores() > 0 ? std::vector<Straggler>() : stragglers_.Find();
}

std::string Training::Summary() {
  std::string summary = plot_.Draw(TerminalWidth());
  if (asked_) summary += "\nstopped after step " + std::to_string(done_) + "\n";
  if (timed_ > 0) {
    summary += "\n" + FormatTimes(plan_, times_) + FormatStragglers(SlowRanks());
  }
  if (const int cores = SharedCores(); cores > 0) {
    summary += std::to_string(DeviceCount(plan_)) + " threads share " + Plural(cores, "core") +
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
  if (timed_ > 0) {
    TimesToJson(plan_, times_, &document);
    StragglersToJson(SlowRanks(), &document);
  }
  if (plan_.level == Level::kBuffer) ArenasToJson(arenas_, &document);
  document["weights_sha256"] = weights_;
  if (check_ != nullptr) {
    Json check = Json::object();
    check["ok"] = difference_.empty();
    check["compared"] = compared_;
    if (!difference_.empty()) check["difference"] = difference_;
    document["check"] = std::move(check);
  }
  return FormatJson("run", document);
}

}  // namespace contraflow
