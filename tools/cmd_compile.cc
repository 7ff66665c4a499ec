#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "compiler/error.h"
#include "compiler/plan_io.h"
#include "tools/build.h"
#include "tools/cmd.h"
#include "tools/costs_option.h"
#include "tools/exit.h"
#include "tools/options.h"
#include "tools/progress.h"

namespace contraflow {
namespace {

struct CompileOptions {
  std::string schedule;
  int ranks = 0, microbatches = 0, chunks = 0, data_parallel = 1;
  CostsOption costs;
  std::string memory_limit;
  std::string level = "comm";
  std::string dump_after;
  std::string output;
};

void CheckPassName(const std::string& name) {
  std::vector<std::string> known = {"all"};
  for (const std::string_view pass : PassNames()) known.emplace_back(pass);
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string list;
  for (const std::string& pass : known) list += (list.empty() ? "" : ", ") + pass;
  const std::string shown = name.substr(0, 64);
  throw Error("--dump-after: unknown pass \"" + shown + "\"" + DidYouMean(shown, known) +
              "; passes are " + list);
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

int Compile(const CompileOptions& options) {
  const Level level = ParseLevel(options.level);
  if (!options.dump_after.empty()) CheckPassName(options.dump_after);
  FindSchedule(options.schedule);  // The name first: nothing else matters if it is misspelt.
  const Spec spec = {.schedule = options.schedule,
                     .ranks = options.ranks,
                     .microbatches = options.microbatches,
                     .chunks = options.chunks,
                     .data_parallel = options.data_parallel,
                     .costs = ResolveCosts(options.costs, UnitCosts()),
                     .memory_limit = {}};
  std::optional<Progress> progress;
  if (options.dump_after.empty() && options.output != "-") {
    progress.emplace("compiling " + spec.schedule);
  }
  const Plan plan = BuildPlan(spec, options.memory_limit, level, Dumper(options.dump_after));
  WritePlanFile(options.output, plan);
  return kExitFine;
}

std::function<int()> Add(CLI::App* app) {
  const auto options = std::make_shared<CompileOptions>();
  app->add_option("--schedule", options->schedule, "see contraflow list")
      ->type_name("NAME")
      ->required();
  AddInteger(app, "--ranks", &options->ranks, "P", "members of the pipeline")->required();
  AddInteger(app, "--microbatches", &options->microbatches, "M", "micro-batches of one step")
      ->required();
  AddInteger(app, "--chunks", &options->chunks, "V",
             "stages a rank holds (default: the schedule's)");
  AddInteger(app, "--data-parallel", &options->data_parallel, "N",
             "replicas of the pipeline; REDUCE sums over them (default: 1)");
  AddCostsOptions(app, &options->costs, "f = b = w = 1");
  app->add_option("--memory-limit", options->memory_limit,
                  "most bytes of activations a rank may hold (a count where the\n"
                  "costs give no bytes), or N times what 1F1B's first rank holds")
      ->type_name("BYTES|Nx");
  app->add_option("--level", options->level,
                  "how far to lower: compute, comm, component or buffer\n"
                  "(default: comm)")
      ->type_name("LEVEL");
  app->add_option("--dump-after", options->dump_after, "print the plan to stderr after this pass")
      ->type_name("PASS|all");
  app->add_option("-o,--output", options->output, "plan file; - is stdout, .cbor is binary")
      ->type_name("FILE")
      ->required();
  return [options] { return Compile(*options); };
}

}  // namespace

const Command kCompileCommand = {
    .name = "compile",
    .summary = "make a plan: generate a schedule, lower it, prove it, write it",
    .example =
        "contraflow compile --schedule dualpipe --ranks 8 --microbatches 20 "
        "--costs deepseek-v3-h800 -o plan.json",
    .add = Add,
};

}  // namespace contraflow
