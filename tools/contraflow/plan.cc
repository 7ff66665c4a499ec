#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "compiler/files/file.h"
#include "compiler/plan/text.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/planner/plan_flags.h"
#include "tools/planner/planner.h"
#include "tools/report/progress.h"

namespace contraflow {
namespace {

struct PlanCommand {
  PlanFlags flags;
  std::string output;
  bool json = false;
};

int RunPlan(const PlanCommand& options) {
  const PlanRequest request = ResolvePlan(options.flags);
  std::optional<ProgressLine> progress("planning");
  const Interrupt interrupt;
  const PlannerResult result = FindPlans(
      request,
      [&](double done, const PlannerRow* best) {
        progress->Say("planning, " + FormatPercent(done) + " done" +
                      (best == nullptr ? "" : "; so far " + WriteBrief(*best)));
      },
      &Interrupt::stop());
  progress.reset();
  std::string others;
  if (!options.output.empty()) {
    for (const std::string& name : WriteRow(request, result.rows.front(), options.output)) {
      others += (others.empty() ? "" : ", ") + name;
    }
  }
  if (options.json) {
    WriteFile("-", PlansToJson(request, result));
  } else {
    Print(WritePlans(request, result));
  }
  if (!others.empty())
    Say("contraflow: " + options.output + " also has " + others + " of another plan");
  if (interrupt.happened()) Say("contraflow: interrupted: these rows are the best so far");
  return kExitFine;
}

std::function<int()> AddPlanCommand(CLI::App* app) {
  const auto options = std::make_shared<PlanCommand>();
  AddPlanOptions(app, &options->flags);
  AddText(app, "-o,--output", &options->output, "DIR",
          "folder for costs.json, plan.json and command.txt of the\nbest row, and for what --for "
          "starts with");
  AddJson(app, &options->json);
  AddQuiet(app);
  AddVerbose(app, kSayProgress);
  return [options] { return RunPlan(*options); };
}

}  // namespace

const Command kPlanCommand = {
    .name = "plan",
    .summary = "find the best parallelism and schedule for a model on a number of GPUs",
    .example =
        "contraflow plan --model config.json --gpu h100 --gpus 16 --global-batch 64 "
        "--seq 4096",
    .add = AddPlanCommand,
};

}  // namespace contraflow
