#include "tools/profile/profile.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"

namespace contraflow {
namespace {

struct ProfileFlags {
  std::vector<std::string> files;
  std::string from, plan, out = "-";
  ProfileOptions options;
};

int RunProfile(const ProfileFlags& flags) {
  ProfileOptions options = flags.options;
  if (!flags.from.empty()) {
    try {
      options.from = ParseProfileForm(flags.from);
    } catch (const Error& error) {
      throw UsageError(std::string("`from`: ") + error.what());
    }
  }
  if (!(options.split >= 0 && options.split <= 1)) {
    throw UsageError("`split`: must be in 0..1, is " + FormatReal(options.split));
  }
  std::optional<Plan> plan;
  if (!flags.plan.empty()) {
    plan = ReadPlanFile(flags.plan);
    options.plan = &*plan;
  }
  for (const std::string& file : flags.files)
    RefuseOverwrite({"-o", flags.out}, {{"the profile", file}});
  RefuseOverwrite({"-o", flags.out}, {{"`plan`", flags.plan}});
  for (size_t i = 0; i < flags.files.size(); ++i) {
    const auto first = std::find(flags.files.begin(), flags.files.end(), flags.files[i]);
    if (first == flags.files.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    Say("contraflow: note: " + flags.files[i] + " is given twice, and counts twice");
  }
  const ProfiledCosts profile = Profile(flags.files, options);
  const std::string text = ProfileText(profile);
  WriteFile(flags.out, WriteCosts(profile.costs));
  // Standard output may hold the costs.
  if (GetVerbosity() != Verbosity::kQuiet) {
    flags.out == "-" ? static_cast<void>(std::fputs(Legible(text).c_str(), stderr)) : Print(text);
  }
  return kExitFine;
}

std::function<int()> AddProfile(CLI::App* app) {
  const auto flags = std::make_shared<ProfileFlags>();
  app->add_option("FILE", flags->files,
                  "profiles of one run, such as one trace a rank; also packed with\ngzip; - is "
                  "standard input")
      ->type_name("")
      ->required();
  AddText(app, "--from", &flags->from, kProfileForms,
          "form of the files: PyTorch's profiler, a log with Megatron-LM's timers,\nranges of nsys "
          "stats, contraflow-run, or a table with the columns\nstage, op and time (default: found "
          "by content)");
  AddText(app, "-o,--output", &flags->out, "COSTS",
          "the cost file, in microseconds; the measurements go to stdout\n(default: -, stdout; the "
          "measurements then go to stderr)");
  AddText(
      app, "--plan", &flags->plan, "PLAN",
      "the plan that ran: stages, micro-batches, and facts that a profile\nlacks, such as bytes");
  AddNumber(app, "--split", &flags->options.split, "X",
            "share of b in a full backward, if only that was timed (0 to 1;\ndefault: 0.5)");
  AddInteger(app, "--warmup", &flags->options.warmup, "N",
             "steps to skip at the start of each file (default: 1 of two or more,\nelse 0)", 0);
  app->add_flag(
      "--mean", flags->options.mean,
      "means in place of medians: costs that add up to the time of\nthis run, outliers and all");
  AddInteger(app, "--ranks", &flags->options.log.ranks, "P",
             "megatron-log: ranks of the pipeline (default: all in the log)", 1);
  AddInteger(app, "--chunks", &flags->options.log.chunks, "V",
             "megatron-log: stages of each rank (default: 1)", 1);
  AddInteger(app, "--microbatches", &flags->options.log.microbatches, "M",
             "megatron-log: micro-batches of a step", 1);
  AddQuiet(app);
  return [flags] { return RunProfile(*flags); };
}

}  // namespace

const Command kProfileCommand = {
    .name = "profile",
    .summary = "make a cost file of what a run was measured to take",
    .example = "contraflow profile trace.json -o costs.json",
    .add = AddProfile,
};

}  // namespace contraflow
