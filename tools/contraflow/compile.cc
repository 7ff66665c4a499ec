#include "schedules/compile.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "compiler/files/plan_io.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/partition/made_plans.h"
#include "schedules/partition/staged.h"
#include "schedules/published/rows.h"
#include "tools/cli/compile_flags.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

/// A plan to compile, and its output.
struct CompileCommand : CompileFlags {
  std::string dump_after;
  std::string output;
};

/// Throws UsageError if the pass does not run on the way to the level.
void CheckPassRuns(const std::string& name, Level level) {
  if (name.empty() || name == "all" || ParseLevel(name) <= level) return;
  throw UsageError("`dump_after` " + name + ": is no pass to `level` " + std::string(Name(level)) +
                   "; give `level` " + name);
}

/// Prints the plan after each pass that is asked for and changed it.
PassObserver Dumper(const std::string& dump_after) {
  if (dump_after.empty()) return {};
  return [dump_after, last = std::string()](std::string_view pass, const Plan& plan) mutable {
    std::string text = WritePlan(plan);
    const bool wanted = dump_after == "all" || dump_after == pass;
    if (wanted && text != last) {
      std::fprintf(stderr, "after %.*s:\n%s", static_cast<int>(pass.size()), pass.data(),
                   text.c_str());
    }
    last = std::move(text);
  };
}

/// One line for a person who waits for it.
std::string WhatWasMade(const Plan& plan, const CostModel& costs, const std::string& path) {
  const Simulation run = Simulate(plan, plan.costs ? *plan.costs : costs, Keep::kFigures);
  return (path == "-" ? "" : path + ": ") + DescribePlan(plan) + ", makespan " +
         FormatWithUnit(run.makespan, costs.unit) +
         (LeavesOutUpdates(plan, plan.costs ? *plan.costs : costs) ? kWithoutUpdates : "") + ", " +
         IdleTitle(plan.layers > 0) + " " + FormatPercent(run.bubble_ratio());
}

/// A longer step than this share is worth a note.
constexpr double kWorthNoting = 0.01;

Time StepOf(const Plan& plan) { return Simulate(plan, *plan.costs, Keep::kFigures).makespan; }

/// One line where layers were moved only to fit the memory, and the step is longer for it; "" else.
std::string CostOfFitting(const Spec& spec, const Plan& plan, CompileOptions options) {
  const bool moves = !spec.costs.layers.empty() && spec.schedule != kAuto.name &&
                     ChoiceOf(spec).kind == PartitionChoice::Kind::kAuto &&
                     spec.recompute.choice == Recompute::Choice::kNone &&
                     spec.offload.choice == Offload::Choice::kNone;
  if (!moves || GetVerbosity() == Verbosity::kQuiet) return "";
  if (!spec.memory_limit && !spec.device_memory) return "";
  Spec unlimited = spec;
  unlimited.memory_limit.reset();
  unlimited.device_memory.reset();
  options.observer = {};
  const Plan shortest = Compile(unlimited, options);
  const double longer =
      static_cast<double>(StepOf(plan)) / static_cast<double>(StepOf(shortest)) - 1;
  if (longer < kWorthNoting) return "";
  return "contraflow: note: stages of " + FormatPartition(plan.costs->partition) +
         " layers fit the memory; the step is " + FormatPercent(longer) + " longer than with " +
         FormatPartition(shortest.costs->partition) + ", which do not";
}

/// One line where another partition takes little longer and holds much less; "" where none does, or
/// nobody reads it.
std::string WhatIsLighter(const Spec& spec, const Plan& plan, const CompileOptions& options) {
  if (GetVerbosity() == Verbosity::kQuiet) return "";
  const std::optional<Plan> lighter = LighterPlan(spec, plan, options);
  if (!lighter) return "";
  const double longer =
      static_cast<double>(StepOf(*lighter)) / static_cast<double>(StepOf(plan)) - 1;
  return "contraflow: note: --partition " + FormatPartition(lighter->costs->partition) + " takes " +
         FormatPercent(std::abs(longer)) + (longer < 0 ? " less" : " longer") +
         " than this plan, and its fullest rank holds " + FormatBytes(FullestRank(*lighter)) +
         " instead of " + FormatBytes(FullestRank(plan));
}

/// True if ranks share the parameters of more stages than they have whole at a time.
bool GathersAgain(const Plan& plan) {
  if (!plan.costs || !plan.costs->memory || plan.costs->memory->zero < 3) return false;
  const size_t held = static_cast<size_t>(plan.stages) * plan.routes.size();
  return held > kGatheredStages * static_cast<size_t>(plan.ranks);
}

int RunCompile(const CompileCommand& options) {
  RefuseOverwrite({"`output`", options.output}, {{"`costs`", options.costs.file.value_or("")},
                                                 {"`model`", options.model.value_or("")}});
  CompileRequest request = ResolveCompile(options);
  const Spec& spec = request.spec;
  CheckChunks(spec);
  if (request.assumed_limit) {
    Say("contraflow: note: no memory limit is known, so auto holds no more than 1F1B (1x); "
        "--memory-limit none lifts it");
  }
  CheckPassRuns(options.dump_after, request.options.level);
  std::optional<ProgressLine> progress;
  if (options.dump_after.empty()) progress.emplace("compiling " + spec.schedule);
  std::optional<Interrupt> interrupt;
  if (spec.schedule == kAuto.name) {
    interrupt.emplace();
    request.options.control =
        WatchSearch(Interrupt::stop(), progress ? &*progress : nullptr, spec.costs.unit);
  }
  double spent = 0;
  if (const auto report = request.options.control.report) {
    request.options.control.report = [&, report](const SearchState& state) {
      spent = state.spent * static_cast<double>(spec.search.budget);
      report(state);
    };
  }
  // A second plan, for the note on partitions, is of the same layers.
  MadePlans made;
  request.options.control.made = &made;
  request.options.observer = Dumper(options.dump_after);
  const Plan plan = NamingCosts(options.costs, [&] { return Compile(spec, request.options); });
  // Thousands of lines are no answer to a person.
  const bool told = options.output.empty() && isatty(STDOUT_FILENO) == 1;
  const std::string output = options.output.empty() ? "-" : options.output;
  if (output == "-") progress.reset();
  if (!told) WritePlanFile(output, plan);
  progress.reset();
  if (GathersAgain(plan)) {
    Say("contraflow: note: `zero` 3: ranks hold more stages than are gathered at a time; gathering "
        "one again takes no time here");
  }
  for (const std::string& note :
       {OverspentNote(spent, spec.search.budget), CostOfFitting(spec, plan, request.options),
        WhatIsLighter(spec, plan, request.options)}) {
    if (!note.empty()) Say(note);
  }
  if (told) {
    Print(WhatWasMade(plan, spec.costs, output) + "\n-o FILE keeps the plan, -o - prints it\n");
  } else if (SaysWhatWasDone()) {
    Say(WhatWasMade(plan, spec.costs, output));
  }
  if (const std::string text = DescribeInterrupt(plan); !text.empty()) Say("contraflow: " + text);
  return kExitFine;
}

std::function<int()> AddCompile(CLI::App* app) {
  const auto options = std::make_shared<CompileCommand>();
  AddCompileOptions(app, options.get());
  AddChoice(app, "--dump-after", &options->dump_after, "comm|component|buffer|all",
            "print the plan to stderr after this pass; all: after each");
  AddText(app, "-o,--output", &options->output, "FILE",
          "plan file; - is stdout; .cbor is binary, FOLDER/ is one binary file\nper rank "
          "(default: stdout, on a terminal only a summary)");
  AddQuiet(app);
  AddVerbose(app, "show progress and a summary even if stderr is not a terminal");
  return [options] { return RunCompile(*options); };
}

}  // namespace

const Command kCompileCommand = {
    .name = "compile",
    .summary = "make a plan: generate a schedule, lower it, prove it, write it",
    .example =
        "contraflow compile --schedule dualpipe --ranks 8 --microbatches 20 "
        "--costs deepseek-v3-h800 -o plan.json",
    .add = AddCompile,
};

}  // namespace contraflow
