#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/report/explanation.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct ExplainOptions {
  std::string plan;
  CostsOption costs;
  std::string semantics;
  std::optional<int64_t> rank, instruction;
  std::optional<GivenTime> at;
  bool all = false, json = false;
};

void CheckQuestion(const ExplainOptions& options) {
  if (options.at && options.instruction) {
    throw UsageError("`at` and `instruction`: give one of them");
  }
  const bool one = options.at || options.instruction;
  if (options.all && (!options.rank || one || options.json)) {
    throw UsageError("`all`: needs `rank` alone, whose idle times it lists");
  }
  const char* const flag = options.at ? "--at" : "--instruction";
  if (one && !options.rank) throw UsageError(FieldOf(flag) + ": needs `rank`");
  if (one && options.json) {
    throw UsageError(FieldOf(flag) + ": not with `json`; `rank` R `json` has every idle time");
  }
}

/// The value of an option as an index below `count`.
int IndexBelow(const char* flag, int64_t value, size_t count) {
  if (value >= 0 && static_cast<uint64_t>(value) < count) return static_cast<int>(value);
  throw Error(FieldOf(flag) + ": must be in 0.." + std::to_string(count - 1) + ", is " +
              std::to_string(value));
}

/// The answer about one rank.
std::string AboutRank(const ExplainOptions& options, const Explanation& explanation) {
  const Plan& plan = explanation.plan;
  const int rank = IndexBelow("--rank", *options.rank, plan.programs.size());
  if (options.instruction) {
    if (plan.program(rank).empty())
      throw Error("`instruction`: rank " + std::to_string(rank) + " runs nothing");
    const int index = IndexBelow("--instruction", *options.instruction, plan.program(rank).size());
    return WriteStart(explanation, {rank, index});
  }
  if (!options.at) return WriteIdle(explanation, rank, options.all);
  const Unit unit = explanation.costs.unit;
  const Time at = ReadOption([&] { return ToTicks(*options.at, unit, "`at`"); });
  const std::string text = WriteMoment(explanation, rank, at);
  if (text.empty()) {
    throw Error(std::string("`at`: the step ") + (explanation.broken ? "stands" : "ends") + " at " +
                FormatWithUnit(explanation.simulation.makespan, unit));
  }
  return text;
}

int RunExplain(const ExplainOptions& options) {
  CheckQuestion(options);
  std::optional<ProgressLine> progress("explaining " + options.plan);
  ScheduleFile file = ReadTimedSchedule(options.plan);
  Plan& plan = file.plan;
  CostModel costs = CostsOf(options.costs, file, nullptr);
  const std::optional<Semantics> queues = AskedQueues(options.semantics, &plan);
  const std::optional<BrokenRun> broken = RunBroken(plan, costs, options.plan);
  if (queues && !broken) UseQueues(*queues, &plan, &costs);
  // With its messages, since ranks wait for them; that changes no time.
  if (plan.level == Level::kCompute && !broken) {
    plan = Lower(std::move(plan), costs, {.target = Level::kComm});
  }
  // Text about one rank has no need of the sensitivities.
  const bool whole = options.json || !options.rank;
  const Explanation explanation = broken  ? ExplainBroken(plan, costs, *broken)
                                  : whole ? Explain(plan, costs)
                                          : ExplainRun(plan, costs, Simulate(plan, costs));
  progress.reset();
  const int code = broken ? kExitInput : kExitFine;
  if (options.json) {
    const int rank = options.rank ? IndexBelow("--rank", *options.rank, plan.programs.size()) : -1;
    WriteFile("-", FormatJson("explain", ExplanationToJson(explanation, rank)));
    return code;
  }
  const std::string head = DescribePlan(plan) + "\n" +
                           DescribeCostsUsed(costs, options.costs.given() || plan.costs) + "\n";
  Print(head +
        (options.rank ? "\n" + AboutRank(options, explanation) : WriteExplanation(explanation)));
  return code;
}

std::function<int()> AddExplain(CLI::App* app) {
  const auto options = std::make_shared<ExplainOptions>();
  AddPlan(app, &options->plan)
      ->description("plan file or folder, or PyTorch's CSV; - is standard input");
  AddCostsOptions(app, &options->costs, "the plan's own");
  AddQueues(app, &options->semantics);
  AddInteger(app, "--rank", &options->rank, "R",
             "why this rank is idle, and its five longest idle times");
  app->add_flag("--all", options->all, "list every idle time of that rank");
  AddTime(app, "--at", &options->at,
          "this rank's instruction at this time, and why (6.2ms, or a number in\nthe unit of the "
          "costs)");
  AddInteger(app, "--instruction", &options->instruction, "I",
             "why that instruction of the rank starts when it does");
  AddJson(app, &options->json);
  AddQuiet(app);
  AddVerbose(app, kSayProgress);
  return [options] { return RunExplain(*options); };
}

}  // namespace

const Command kExplainCommand = {
    .name = "explain",
    .summary =
        "say why ranks are idle and which costs the makespan follows, or where a broken plan "
        "stands",
    .example = "contraflow explain plan.json --rank 1",
    .add = AddExplain,
};

}  // namespace contraflow
