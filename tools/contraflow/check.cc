#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct CheckOptions {
  std::string plan;
  CostsOption costs;
  std::optional<double> max_bubble, max_bubble_ratio, max_makespan, max_exposed;
  std::optional<int64_t> max_activations, max_bytes;
  std::optional<std::string> max_bytes_text;
  bool formula = false;

  int bounds() const {
    return max_bubble.has_value() + max_bubble_ratio.has_value() + max_makespan.has_value() +
           max_exposed.has_value() + max_activations.has_value() + max_bytes.has_value() + formula;
  }
};

/// " on rank 3" of the rank with the largest `figure`.
template <typename Figure>
std::string Where(const Report& report, Figure figure) {
  const auto& ranks = report.simulation.ranks;
  const auto worst = std::ranges::max_element(ranks, {}, figure);
  return " on rank " + std::to_string(worst - ranks.begin());
}

/// One line for each bound that is broken.
std::string Broken(const CheckOptions& options, const Report& report) {
  const auto time = [&](Time ticks) { return FormatTime(ticks, report.unit); };
  const auto ticks = [&](double value, const char* flag) {
    return ReadOption([&] { return ToTicks(value, report.unit, flag); });
  };
  std::string lines;
  if (options.max_bubble) {
    const Time bound = ticks(*options.max_bubble, "--max-bubble");
    if (report.largest_bubble() > bound) {
      lines += "bubble " + time(report.largest_bubble()) + Where(report, &RankFigures::bubble) +
               " is over --max-bubble " + time(bound) + "\n";
    }
  }
  if (options.max_bubble_ratio) {
    const double bound = *options.max_bubble_ratio, ratio = report.simulation.bubble_ratio();
    if (!(bound >= 0 && bound <= 1)) {
      throw UsageError("--max-bubble-ratio: must be in 0..1, is " + FormatReal(bound));
    }
    if (ratio > bound) {
      lines += "bubble ratio " + FormatReal(ratio) + " is over --max-bubble-ratio " +
               FormatReal(bound) + "\n";
    }
  }
  if (options.max_makespan) {
    const Time bound = ticks(*options.max_makespan, "--max-makespan");
    if (report.simulation.makespan > bound) {
      lines += "makespan " + time(report.simulation.makespan) + " is over --max-makespan " +
               time(bound) + "\n";
    }
  }
  if (options.max_exposed) {
    const Time bound = ticks(*options.max_exposed, "--max-exposed");
    if (report.largest_exposed() > bound) {
      lines += "exposed all-to-all " + time(report.largest_exposed()) +
               Where(report, &RankFigures::exposed) + " is over --max-exposed " + time(bound) +
               "\n";
    }
  }
  if (options.max_activations && report.peak_activations() > *options.max_activations) {
    lines += "activations " + std::to_string(report.peak_activations()) +
             Where(report, &RankFigures::peak_activations) + " are over --max-activations " +
             std::to_string(*options.max_activations) + "\n";
  }
  if (options.max_bytes) {
    const auto worst = std::max_element(
        report.memory.begin(), report.memory.end(),
        [](const MemoryFigures& a, const MemoryFigures& b) { return a.total() < b.total(); });
    if (worst->total() > *options.max_bytes) {
      lines += "bytes " + std::to_string(worst->total()) + " on rank " +
               std::to_string(worst - report.memory.begin()) + " are over --max-bytes " +
               std::to_string(*options.max_bytes) + "\n";
    }
  }
  if (options.formula && !report.formula->holds) {
    lines += "formula " + std::string(report.formula->text) + " = " +
             time(report.formula->published) + " " + CompareWithFormula(report) + "\n";
  }
  return lines;
}

int Check(const CheckOptions& options) {
  if (options.bounds() == 0) {
    throw UsageError("check: no limit given; see contraflow check --help");
  }
  const Plan plan = ReadPlanFile(options.plan);
  RequireSound(plan, options.plan);
  const CostModel costs = CostsForPlan(options.costs, plan);
  const bool bytes_known = plan.level == Level::kBuffer || MemoryLimit(costs).bytes();
  if (options.max_bytes && !bytes_known) {
    throw Error(
        "--max-bytes: the costs give no \"activation_bytes\" under \"memory\"; use "
        "--costs with a file that does, or --max-activations");
  }
  if (options.max_exposed && plan.layers == 0) {
    throw Error("--max-exposed: " + options.plan +
                " has no components, so no all-to-all is known; compile it with --level component");
  }
  const Report report = MakeReport(plan, costs, std::nullopt, Keep::kFigures);
  if (options.formula && !report.formula) {
    throw Error("--formula: none is known for schedule \"" + plan.schedule.substr(0, 64) +
                (plan.layers > 0
                     ? "\" with components (formulas are for whole cells, level comm)"
                     : "\" with these sizes and costs (formulas are for equal stages and "
                       "micro-batches)"));
  }
  const std::string broken = Broken(options, report);
  const int bounds = options.bounds();
  WriteFile("-", !broken.empty() ? broken
                                 : "ok: " + std::to_string(bounds) +
                                       (bounds == 1 ? " limit holds\n" : " limits hold\n"));
  return broken.empty() ? kExitFine : kExitInput;
}

std::function<int()> AddCheck(CLI::App* app) {
  const auto options = std::make_shared<CheckOptions>();
  AddPlan(app, &options->plan);
  AddCostsOptions(app, &options->costs, "the plan's own");
  AddNumber(app, "--max-bubble", &options->max_bubble, "T",
            "most idle time of any rank in a step, all its gaps together,\nin the costs' unit");
  AddNumber(app, "--max-bubble-ratio", &options->max_bubble_ratio, "X",
            "bubbles as a share of all ranks' time, 0 to 1");
  AddNumber(app, "--max-makespan", &options->max_makespan, "T", "makespan, in the costs' unit");
  AddNumber(app, "--max-exposed", &options->max_exposed, "T",
            "exposed all-to-all of a rank (its compute lane is idle), in the\ncosts' unit");
  AddInteger(app, "--max-activations", &options->max_activations, "N",
             "most activations that a rank holds at once");
  app->add_option(
         "--max-bytes", options->max_bytes_text,
         "most bytes on a rank in all: activations and, as far as the costs\nsay, parameters, "
         "gradients, optimizer state and messages")
      ->type_name("BYTES");
  app->add_flag("--formula", options->formula,
                "require every rank's bubble to equal the published formula");
  return [options] {
    if (options->max_bytes_text) {
      options->max_bytes =
          ReadOption([&] { return ParseBytes(*options->max_bytes_text, "--max-bytes"); });
    }
    return Check(*options);
  };
}

}  // namespace

const Command kCheckCommand = {
    .name = "check",
    .summary = "for CI: exit 1 and print a line for each limit that a plan exceeds",
    .example = "contraflow check plan.json --max-bubble-ratio 0.2",
    .add = AddCheck,
};

}  // namespace contraflow
