#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "compiler/verify/verify.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/pictures/picture.h"
#include "tools/report/guard.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct CheckOptions {
  std::vector<std::string> plans;
  CostsOption costs;
  Limits limits;
  std::optional<std::string> max_bytes, max_memory;
  std::string bounds, golden, junit, annotations = "none";
  bool json = false, quiet = false, verbose = false;

  /// True if a fault of a plan is one of several results.
  bool reports() const {
    return json || !junit.empty() || annotations != "none" || plans.size() > 1;
  }
};

/// The grid of a plan, or why there is none.
std::string Grid(const Plan& plan, const CostModel& costs) {
  GridStyle style;
  if (const std::optional<int> width = OutputWidth()) {
    style.width = std::clamp(*width, kMinGridWidth, kMaxGridWidth);
  }
  return DrawGrid(MakePicture(plan, costs, Simulate(plan, costs), {}), style);
}

/// Compares the programs with those of the golden plan: where they differ, and the pictures of
/// both.
LimitResult CompareWithGolden(const Plan& plan, const CostModel& costs, const Plan& golden,
                              const std::string& path) {
  LimitResult result{"golden", ""};
  if (plan == golden) return result;
  std::string ranks;
  int differ = 0;
  for (size_t r = 0; r < std::max(plan.programs.size(), golden.programs.size()); ++r) {
    if (r < plan.programs.size() && r < golden.programs.size() &&
        plan.programs[r] == golden.programs[r]) {
      continue;
    }
    ranks += " " + std::to_string(r);
    ++differ;
  }
  result.broken = "differs from --golden " + path +
                  (differ == 0 ? ", though no program does"
                               : (differ == 1 ? " on rank" : " on ranks") + ranks) +
                  "; contraflow diff shows it\nwas:\n" + Grid(golden, CostsForPlan({}, golden)) +
                  "is:\n" + Grid(plan, costs);
  result.broken.pop_back();
  return result;
}

Verdict CheckPlan(const CheckOptions& options, const Limits& limits, const std::string& path) {
  Verdict verdict{path, {}};
  const auto judge = [&] {
    const Plan plan = ReadPlanFile(path);
    RequireSound(plan, path);
    verdict.results.push_back({"sound", ""});
    const CostModel costs = CostsForPlan(options.costs, plan);
    for (LimitResult& result : Judge(plan, costs, limits, path)) {
      verdict.results.push_back(std::move(result));
    }
    if (!options.golden.empty()) {
      const Plan golden = ReadPlanFile(options.golden);
      RequireSound(golden, options.golden);
      verdict.results.push_back(CompareWithGolden(plan, costs, golden, options.golden));
    }
  };
  if (!options.reports()) {
    judge();
    return verdict;
  }
  try {
    judge();
  } catch (const Error& error) {
    verdict.results.push_back(
        {verdict.results.empty() ? "sound" : "limits", WithFlags(error.what())});
  }
  return verdict;
}

/// Text of broken or, `all`, of every limit.
std::string VerdictText(const std::vector<Verdict>& verdicts, bool all) {
  std::string broken, held;
  size_t limits = 0;
  for (const Verdict& verdict : verdicts) {
    const auto line = [&](const std::string& said) {
      const std::string plan = verdict.plan + ": ";
      return (verdicts.size() == 1 || said.starts_with(plan) ? "" : plan) + said + "\n";
    };
    for (const LimitResult& result : verdict.results) {
      limits += result.limit != "sound";
      if (result.broken.empty() && !result.held.empty()) held += line(result.held);
      if (!result.broken.empty()) broken += line(result.broken);
    }
  }
  if (!all) held.clear();
  if (!broken.empty()) return held + broken;
  return held + "ok: " + std::to_string(limits) + (limits == 1 ? " limit holds" : " limits hold") +
         (verdicts.size() > 1 ? ", of " + std::to_string(verdicts.size()) + " plans\n" : "\n");
}

/// Which limits are of no plan of the call: misspelt, maybe, where a plan has none of its own.
void SayUnused(const CheckOptions& options, const LimitsFile& file,
               const std::vector<std::string>& keys) {
  const auto plain = std::ranges::find(keys, "");
  if (plain == keys.end() && !options.verbose) return;
  std::string unused;
  for (const auto& [key, limits] : file.plans) {
    if (std::ranges::count(keys, key) == 0) unused += (unused.empty() ? "" : ", ") + key;
  }
  if (unused.empty()) return;
  Say("contraflow: note: " + file.place + ": " +
      (plain == keys.end()
           ? ""
           : "has nothing for " + options.plans[static_cast<size_t>(plain - keys.begin())] +
                 " alone; ") +
      "its limits for these plans are not used here: " + unused);
}

int Check(const CheckOptions& options) {
  const NamedFile junit = {"`junit`", options.junit};
  RefuseOverwrite(junit, {{"`bounds`", options.bounds},
                          {"`golden`", options.golden},
                          {"`costs`", options.costs.file.value_or("")}});
  for (const std::string& path : options.plans) RefuseOverwrite(junit, {{"the plan", path}});
  LimitsFile file;
  if (!options.bounds.empty()) {
    file = ReadLimits(ReadFile(options.bounds, JsonLimits{}.bytes), options.bounds);
  }
  const std::vector<std::string> keys = file.KeysOf(options.plans);
  std::vector<Limits> limits;
  SayUnused(options, file, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    limits.push_back(options.limits.Over(file.Of(keys[i])));
    if (options.golden.empty() && limits.back().count() == 0) {
      throw UsageError("check: no limit given" +
                       (options.plans.size() > 1 ? " for " + options.plans[i] : std::string()) +
                       "; see contraflow check --help");
    }
  }
  if (!options.golden.empty() && options.plans.size() > 1) {
    throw UsageError("`golden`: is for one plan, " + std::to_string(options.plans.size()) +
                     " are given");
  }
  std::vector<Verdict> verdicts;
  for (size_t i = 0; i < keys.size(); ++i) {
    verdicts.push_back(CheckPlan(options, limits[i], options.plans[i]));
  }
  if (!options.junit.empty()) WriteFile(options.junit, WriteJunit(verdicts));
  if (options.json) {
    WriteFile("-", FormatJson("check", VerdictsToJson(verdicts)));
  } else if (options.junit != "-") {
    const bool annotate = options.annotations == "github";
    const bool holds = std::ranges::all_of(verdicts, &Verdict::holds);
    if (!options.quiet || !holds) Print(VerdictText(verdicts, options.verbose));
    if (annotate) WriteFile("-", WriteAnnotations(verdicts));
  }
  return std::ranges::all_of(verdicts, &Verdict::holds) ? kExitFine : kExitInput;
}

std::function<int()> AddCheck(CLI::App* app) {
  const auto options = std::make_shared<CheckOptions>();
  Require(AddTexts(app, "PLAN", &options->plans, "plan files or folders; - is standard input"));
  AddCostsOptions(app, &options->costs, "each plan's own");
  Limits* const limits = &options->limits;
  AddTime(app, "--max-bubble", &limits->max_bubble,
          "most idle time of a rank in a step (6.2ms, or a number in the unit of\nthe costs; for "
          "a share --max-bubble-ratio)");
  AddNumber(app, "--max-bubble-ratio", &limits->max_bubble_ratio, "X",
            "bubbles as a share of all ranks' time, 0 to 1 or as in 10%");
  AddTime(app, "--max-makespan", &limits->max_makespan, "makespan");
  AddTime(app, "--max-exposed", &limits->max_exposed,
          "exposed all-to-all of a rank (its compute lane is idle)");
  AddNumber(app, "--max-gap", &limits->max_gap, "X",
            "how far the makespan is above the proven lower bound, as a share of it");
  AddInteger(app, "--max-activations", &limits->max_activations, "N",
             "most activations that a rank holds at once");
  app->add_option("--max-bytes", options->max_bytes,
                  "most bytes on a rank: activations and, if the costs have them,\nparameters, "
                  "gradients, optimizer state and messages")
      ->type_name("BYTES");
  app->add_option("--max-memory", options->max_memory,
                  "most activations of a rank, as a multiple of the peak of 1F1B in the\nplan's "
                  "own partition")
      ->type_name("Nx");
  AddFlag(app, "--formula", &limits->formula,
          "require every rank's bubble to equal the published formula");
  AddText(app, "--bounds", &options->bounds, "FILE",
          "limits from a file (guide: Guard a plan in CI); flags override it");
  AddText(app, "--golden", &options->golden, "PLAN", "require this plan, and draw what changed");
  AddJson(app, &options->json);
  AddText(app, "--junit", &options->junit, "FILE", "write a JUnit report; - is stdout");
  AddChoice(app, "--annotations", &options->annotations, "none|github",
            "print errors as annotations of a workflow (default: none)");
  AddQuiet(app, &options->quiet);
  AddVerbose(app, "also print the limits that hold", &options->verbose);
  return [options] {
    if (options->max_bytes) {
      options->limits.max_bytes =
          ReadOption([&] { return ParseBytes(*options->max_bytes, "`max_bytes`"); });
    }
    if (options->max_memory) {
      options->limits.max_memory =
          ReadOption([&] { return ParseMultiple(*options->max_memory, "`max_memory`: "); });
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
