#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/simulate/simulate.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/profile/gzip.h"
#include "tools/profile/profile.h"
#include "tools/profile/run_trace.h"
#include "tools/report/difference.h"
#include "tools/report/explanation.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct DiffOptions {
  std::string left, right;
  std::vector<std::string> more;  ///< traces of other ranks
  std::string update_costs;
  bool stat = false, json = false;
};

/// The text of a file if it is a trace.
std::optional<std::string> TraceIn(const std::string& path) {
  // A file that can be read but once is a plan.
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return std::nullopt;
  std::string head(kTraceHead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  if (!IsGzip(head) && !LooksLikeTrace(head)) return std::nullopt;
  std::string text = ReadFile(path, kMostTraceBytes);
  if (IsGzip(text)) text = Gunzip(text, kMostTraceBytes, path);
  return LooksLikeTrace(text) ? std::optional(std::move(text)) : std::nullopt;
}

/// A plan and the traces of a run of it.
int DiffRun(const DiffOptions& options, std::string first) {
  std::vector<TraceText> traces;
  traces.push_back({options.right, std::move(first)});
  for (const std::string& path : options.more) {
    std::optional<std::string> text = TraceIn(path);
    if (!text) throw Error(path + ": is no trace; several files are traces of one run");
    traces.push_back({path, std::move(*text)});
  }
  if (options.stat) throw UsageError("`stat`: is for two plans");
  const Plan plan = ReadPlanFile(options.left);
  RequireSound(plan, options.left);
  if (plan.level == Level::kCompute) {
    throw Error(options.left +
                ": is at level compute, and nothing runs it; give the plan that ran");
  }
  const CostModel costs = CostsForPlan({}, plan);
  const Explanation predicted = ExplainRun(plan, costs, Simulate(plan, costs));
  MeasuredRun run = ReadRun(plan, traces);
  const std::string note = run.Note();
  const Explanation measured = ExplainRun(plan, costs, RunOf(plan, costs, std::move(run.timeline)));
  if (!options.update_costs.empty()) {
    ProfileOptions profile{.plan = &plan, .mean = true};
    std::vector<FileSamples> files;
    for (const TraceText& trace : traces) {
      files.push_back(ReadProfileText(trace.text, trace.place, profile));
    }
    ProfiledCosts measured_costs = CostsOfSamples(files, profile);
    // The costs of several steps are means, and only one of them is compared.
    if (run.steps == 1) FitMessages(plan, measured.simulation.makespan, &measured_costs);
    WriteFile(options.update_costs, WriteCosts(measured_costs.costs));
    for (const std::string& warning : measured_costs.notes) Say("contraflow: warning: " + warning);
  }
  if (options.json) {
    WriteFile("-", FormatJson("diff", RunsToJson(predicted, measured, run.steps)));
  } else {
    Print(DescribePlan(plan) + "\n" + (note.empty() ? "" : "trace: " + note + "\n") +
          CompareRuns(predicted, measured));
  }
  return kExitFine;
}

int Diff(const DiffOptions& options) {
  if (options.left == "-" && options.right == "-") {
    throw UsageError("only one of the two plans can be - (standard input)");
  }
  RefuseOverwrite({"`update_costs`", options.update_costs},
                  {{"the plan", options.left}, {"the trace", options.right}});
  for (const std::string& path : options.more) {
    RefuseOverwrite({"`update_costs`", options.update_costs}, {{"the trace", path}});
  }
  if (std::optional<std::string> trace = TraceIn(options.right)) {
    return DiffRun(options, std::move(*trace));
  }
  if (!options.update_costs.empty())
    throw UsageError("`update_costs`: needs a trace, and " + options.right + " is none");
  if (!options.more.empty()) throw UsageError("diff: takes two plans, or a plan and its traces");
  const Plan left = ReadPlanFile(options.left), right = ReadPlanFile(options.right);
  const int code = left == right ? kExitFine : kExitInput;
  if (code == kExitFine && !options.json) return code;
  const Difference difference = Differ(left, right);
  if (options.json) {
    WriteFile("-", FormatJson("diff", DifferenceToJson(difference)));
  } else {
    Print("--- " + options.left + "\n+++ " + options.right + "\n" +
          WriteDifference(difference, options.stat));
  }
  return code;
}

std::function<int()> AddDiff(CLI::App* app) {
  const auto options = std::make_shared<DiffOptions>();
  AddPlan(app, &options->left, "PLAN");
  AddPlan(app, &options->right, "OTHER")
      ->description(
          "another plan; or the trace of a run of this one, as contraflow-run\n--trace writes it");
  AddTexts(app, "TRACE", &options->more, "the other traces, if each rank has one");
  AddFlag(app, "--stat", &options->stat, "only the figures, and how much moved on each rank");
  AddText(app, "--update-costs", &options->update_costs, "COSTS",
          "write the costs in the trace to a file, for compile and simulate");
  AddJson(app, &options->json);
  AddQuiet(app);
  return [options] { return Diff(*options); };
}

}  // namespace

const Command kDiffCommand = {
    .name = "diff",
    .summary = "compare two plans (exit 1 if they differ), or a plan with a run of it",
    .example = "contraflow diff plan.json other.json",
    .add = AddDiff,
};

}  // namespace contraflow
