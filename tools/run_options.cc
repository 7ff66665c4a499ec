#include "tools/run_options.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "compiler/error.h"
#include "tools/exit.h"
#include "tools/options.h"

namespace contraflow {
namespace {

constexpr double kMaxTimeout = 1e6;

/// What the parser could not place, with the nearest known option.
std::string UnknownWord(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : app.remaining()) {
    const std::string name = word.substr(0, word.find('=')).substr(0, 64);
    if (!name.starts_with("-")) return "unexpected argument \"" + name + "\"";
    return "unknown option \"" + name + "\"" + DidYouMean(name, known);
  }
  return "";
}

void CheckOptions(const RunOptions& options) {
  if (options.device != "cpu") {
    throw Error("--device " + options.device +
                ": this version executes plans on the CPU only; use --device cpu");
  }
  if (options.transport != "threads") {
    throw Error("--transport " + options.transport +
                ": this version joins ranks as threads of one process only; use --transport "
                "threads");
  }
  if (options.trace == "-") {
    throw Error("--trace: must be a file; standard output is for the report");
  }
  if (options.steps < 1) {
    throw Error("--steps: must be at least 1, is " + std::to_string(options.steps));
  }
  if (options.capacity) CheckCapacity(*options.capacity);
  if (!(options.timeout > 0 && options.timeout <= kMaxTimeout)) {
    throw Error("--timeout: must be above 0 and at most 1000000 seconds");
  }
}

}  // namespace

RunOptions ParseRunOptions(const std::vector<std::string>& words) {
  RunOptions options;
  std::optional<int64_t> seed;
  std::optional<double> timeout;
  CLI::App app("Execute a plan: train a small MoE language model with it, ranks as threads.",
               "contraflow-run");
  app.get_formatter()->column_width(34);
  app.get_formatter()->label("OPTIONS", "OPTIONS");
  AddPlan(&app, &options.plan);
  AddChoice(&app, "--device", &options.device, "cpu|cuda", "where to compute; default cpu");
  AddChoice(&app, "--transport", &options.transport, "threads|mpi|nccl",
            "how ranks exchange messages; default threads");
  app.add_option("--model", options.model, "model file or preset: default, tiny")
      ->type_name("FILE|PRESET");
  AddNumber(&app, "--capacity", &options.capacity, "X",
            "an expert takes at most X times its even share of a device's tokens, the others are "
            "dropped; default the model's capacity_factor");
  app.add_option("--data", options.data, "text to train on; default a licence text of this machine")
      ->type_name("FILE");
  AddInteger(&app, "--steps", &options.steps, "N", "optimizer steps; default 10");
  app.add_flag("--check", options.check,
               "do the same steps on one rank without a pipeline, and compare every loss, gradient "
               "and weight bit for bit");
  app.add_option("--trace", options.trace,
                 "write the measured timeline of the last step as a Chrome/Perfetto trace")
      ->type_name("FILE");
  AddInteger(&app, "--seed", &seed, "N", "of the weights and of the choice of text; default 1");
  app.add_flag("--strict", options.strict,
               "every message waits for its receiver (rendezvous), as the plan was proven for");
  AddNumber(&app, "--timeout", &timeout, "SECONDS",
            "give up when no rank has made progress for so long; default 120");
  AddJson(&app, &options.json);
  app.set_version_flag("--version", "contraflow-run " CF_VERSION, "print the version");
  app.footer("\nExample: contraflow-run plan.json --steps 20 --check");
  try {
    // The parser takes its words from the back.
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::CallForVersion& version) {
    options.help = version.what() + std::string("\n");
    return options;
  } catch (const CLI::ParseError& error) {
    const std::string unknown = UnknownWord(app);
    throw UsageError((unknown.empty() ? error.what() : unknown) + "; see contraflow-run --help");
  }
  options.seed = static_cast<uint64_t>(seed.value_or(1));
  options.timeout = timeout.value_or(options.timeout);
  CheckOptions(options);
  return options;
}

}  // namespace contraflow
