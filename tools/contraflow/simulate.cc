#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/pictures/page.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct SimulateOptions {
  std::string plan;
  CostsOption costs;
  std::string trace, html, semantics;
  bool json = false;
};

int RunSimulate(const SimulateOptions& options) {
  if (options.trace == "-") {
    throw UsageError("`trace`: must be a file; standard output is for the report");
  }
  const NamedFile plan_file = {"the plan", options.plan},
                  costs_file = {"`costs`", options.costs.file.value_or("")},
                  trace_file = {"`trace`", options.trace};
  RefuseOverwrite(trace_file, {plan_file, costs_file});
  RefuseOverwrite({"`html`", options.html}, {plan_file, costs_file, trace_file});
  if (options.html == "-") {
    throw UsageError("`html`: must be a file; standard output is for the report");
  }
  std::optional<ProgressLine> progress("simulating " + options.plan);
  ScheduleFile file = ReadTimedSchedule(options.plan);
  Plan& plan = file.plan;
  const std::optional<Semantics> queues = AskedQueues(options.semantics, &plan);
  RequireSound(plan, options.plan);
  std::vector<std::string> assumed;
  CostModel costs = CostsOf(options.costs, file, &assumed);
  if (queues) UseQueues(*queues, &plan, &costs);
  Warn(assumed);
  const bool files = !options.trace.empty() || !options.html.empty();
  const Keep keep = options.json && !files ? Keep::kFigures : Keep::kTimeline;
  const Report report = MakeReport(plan, costs, std::nullopt, keep);
  if (!options.trace.empty()) {
    WriteFile(options.trace, WriteTrace(plan, report.simulation.timeline));
  }
  if (!options.html.empty()) {
    const PagePlan page = PageOf(plan, costs, report, plan.schedule);
    WriteFile(options.html, DrawPage({&page, 1}, {}));
  }
  progress.reset();
  if (options.json) {
    Json json = ReportToJson(report);
    for (const std::string& what : assumed) json["warnings"].push_back(WithFlags(what));
    WriteFile("-", FormatJson("simulate", json));
    return kExitFine;
  }
  std::string text = DescribePlan(plan) + "\n" + DescribeSearch(plan) +
                     DescribeCostsUsed(costs, options.costs.given() || plan.costs) + "\n\n" +
                     FormatTable(RankTable(report, costs.memory.has_value())) + "\n" +
                     SummaryTable(plan, report);
  if (const std::string memory = MemoryTable(report); !memory.empty()) text += "\n" + memory;
  if (report.formula) text += "\n" + std::string(kFormulaLegend);
  Print(text);
  return kExitFine;
}

std::function<int()> AddSimulate(CLI::App* app) {
  const auto options = std::make_shared<SimulateOptions>();
  AddPlan(app, &options->plan)
      ->description("plan file or folder, or PyTorch's CSV; - is standard input");
  AddCostsOptions(app, &options->costs, "the plan's own");
  AddQueues(app, &options->semantics);
  AddText(app, "--trace", &options->trace, "FILE",
          "write the predicted timeline as a Chrome/Perfetto trace");
  AddText(app, "--html", &options->html, "FILE", "write an interactive HTML timeline");
  AddJson(app, &options->json);
  AddQuiet(app);
  return [options] { return RunSimulate(*options); };
}

}  // namespace

const Command kSimulateCommand = {
    .name = "simulate",
    .summary = "predict makespan, bubbles, memory and critical path of a plan",
    .example = "contraflow simulate plan.json --comm 0.1",
    .add = AddSimulate,
};

}  // namespace contraflow
