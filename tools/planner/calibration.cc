#include "tools/planner/calibration.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tools/cli/compile_flags.h"
#include "tools/cli/options.h"
#include "tools/planner/estimate.h"
#include "tools/planner/planner.h"
#include "tools/planner/row_compiler.h"

namespace contraflow {
namespace {

/// Steps of the search for a factor, which is nearly one over time, and the error it may leave.
constexpr int kScaleSteps = 6;
constexpr double kClose = 0.005;
/// Least factor: a slower run is of another model or has another unit.
constexpr double kLeastScale = 0.02;
constexpr double kNanosecond = 1e-9;

constexpr std::string_view kRunKeys[] = {
    "tokens/s/gpu", "step",     "tp",        "cp",     "ep",   "etp",          "pp", "zero",
    "micro-batch",  "schedule", "recompute", "chunks", "gpus", "global-batch", "seq"};

using Fields = std::map<std::string, std::string, std::less<>>;

Fields FieldsOf(std::string_view text) {
  Fields fields;
  ForEachPair(text, kRunKeys, [&](const std::string& key, std::string_view value) {
    if (value.empty()) throw Error(key + " has no value; give " + key + "=..");
    if (!fields.emplace(key, value).second) throw Error("has " + key + " twice");
  });
  return fields;
}

/// A whole number from `least`, or `absent`.
int NumberOf(const Fields& fields, std::string_view key, int least, int absent) {
  const auto field = fields.find(key);
  if (field == fields.end()) return absent;
  const std::optional<int> value = WholeNumber(field->second, least);
  if (value) return *value;
  throw Error(std::string(key) + " must be a whole number of at least " + std::to_string(least));
}

std::string TextOf(const Fields& fields, std::string_view key, const std::string& absent) {
  const auto field = fields.find(key);
  return field == fields.end() ? absent : field->second;
}

/// Seconds of a step, from either of the two fields.
double SecondsOf(const Fields& fields, const PlanRequest& request) {
  const auto step = fields.find("step"), rate = fields.find("tokens/s/gpu");
  if ((step == fields.end()) == (rate == fields.end())) {
    throw Error("needs one of tokens/s/gpu=N and step=TIME");
  }
  if (step != fields.end()) {
    return static_cast<double>(ParseDuration("step", step->second)) * kNanosecond;
  }
  const std::string& text = rate->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value <= 0) {
    throw Error("tokens/s/gpu must be a number above 0");
  }
  return static_cast<double>(request.global_batch) * static_cast<double>(request.sequence) / value /
         request.gpus;
}

CalibrationRun Parse(std::string_view text, const PlanRequest& request) {
  const Fields fields = FieldsOf(text);
  CalibrationRun run{.request = request,
                     .configuration = {},
                     .schedule = ScheduleName(TextOf(fields, "schedule", "1f1b")),
                     .recompute = TextOf(fields, "recompute", "none"),
                     .chunks = NumberOf(fields, "chunks", 1, 0)};
  FindSchedule(run.schedule);
  run.request.gpus = NumberOf(fields, "gpus", 1, request.gpus);
  run.request.global_batch = NumberOf(fields, "global-batch", 1, request.global_batch);
  if (run.request.gpus == 0 || run.request.global_batch == 0) {
    throw Error("needs gpus=N and global-batch=N");
  }
  run.request.sequence = NumberOf(fields, "seq", 1, static_cast<int>(request.sequence));
  run.request.fixed.clear();
  for (const char* const key : {"tp", "cp", "ep", "etp", "pp", "micro-batch"}) {
    run.request.fixed[key] = NumberOf(fields, key, 1, 1);
  }
  if (fields.contains("zero")) run.request.fixed["zero"] = NumberOf(fields, "zero", 0, 0);
  run.seconds = SecondsOf(fields, run.request);
  Rejected rejected;
  run.configuration = ConfigurationsOf(run.request, &rejected).front();
  return run;
}

/// "tp=4,pp=4,dp=4 1f1b".
std::string RunText(const CalibrationRun& run) {
  const Configuration& ran = run.configuration;
  return "tp=" + std::to_string(ran.tp) + ",pp=" + std::to_string(ran.pp) +
         ",dp=" + std::to_string(ran.dp) + " " + run.schedule;
}

/// Seconds of a predicted step.
double Predicted(CalibrationRun run, double scale) {
  run.request.scale = scale;
  PlannerCosts costs(run.request);
  const PlannerRow row = {.configuration = run.configuration,
                          .schedule = run.schedule,
                          .recompute = run.recompute,
                          .target = {},
                          .overlap = run.request.overlap(),
                          .chunks = run.chunks};
  CompileRequest request = ResolveCompile(CompileFlagsOf(row, costs.Of(run.configuration)));
  request.options.any_device = true;  // it ran
  const Plan plan = Compile(request.spec, request.options);
  return static_cast<double>(Simulate(plan, *plan.costs, Keep::kFigures).makespan) * kNanosecond;
}

}  // namespace

CalibrationRun ParseCalibrationRun(std::string_view text, const PlanRequest& request) {
  try {
    return Parse(text, request);
  } catch (const Error& error) {
    throw Error("`measured`: " + std::string(error.what()));
  }
}

void ScaleToRun(const std::string& text, PlanRequest* request) {
  const CalibrationRun run = ParseCalibrationRun(text, *request);
  double predicted = 0;
  request->scale = ScaleOf(run, &predicted);
  const auto time = [](double seconds) {
    return FormatWithUnit(static_cast<Time>(seconds / kNanosecond), Unit::kNanoseconds);
  };
  request->scaled_by = "a run (" + text + "), taken as " + RunText(run) + ", took " +
                       time(run.seconds) + " and not the predicted " + time(predicted);
}

double ScaleOf(const CalibrationRun& run, double* predicted) {
  try {
    double scale = 1, seconds = *predicted = Predicted(run, 1);
    for (int i = 0; i < kScaleSteps && std::abs(seconds / run.seconds - 1) > kClose; ++i) {
      scale *= seconds / run.seconds;
      seconds = Predicted(run, scale);
    }
    if (std::abs(seconds / run.seconds - 1) <= 2 * kClose && scale >= kLeastScale) return scale;
    throw Error("the run, taken as " + RunText(run) + ", is predicted to take " +
                FormatWithUnit(static_cast<Time>(*predicted / kNanosecond), Unit::kNanoseconds) +
                ", and no efficiencies between " + FormatReal(kLeastScale) +
                " times the GPU's and 1 give the measured " +
                FormatWithUnit(static_cast<Time>(run.seconds / kNanosecond), Unit::kNanoseconds) +
                "; is it of this model, GPU and configuration?");
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    throw Error("`measured`: " + std::string(error.what()));
  }
}

}  // namespace contraflow
