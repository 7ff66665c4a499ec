#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/gpu_option.h"
#include "tools/interop/launch.h"
#include "tools/planner/estimate.h"
#include "tools/planner/planner.h"
#include "tools/profile/hf_config.h"
#include "tools/report/progress.h"

namespace contraflow {
namespace {

constexpr int kMostGpus = 1 << 17, kMostSequences = 1 << 20, kMostRows = 100;

struct PlanCommand {
  std::string model, like, gpu, dtype = "bf16", memory, fix, only, framework, budget = "20s",
                                output;
  int gpus = 0, global_batch = 0, seq = 0, top = 5;
  bool json = false;
};

void CheckMost(const char* field, int value, int most) {
  if (value <= most) return;
  throw UsageError(std::string(field) + ": must be at most " + std::to_string(most) + ", is " +
                   std::to_string(value));
}

std::vector<std::string> SchedulesOf(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string name = ScheduleName(text.substr(at, end - at));
    ReadOption([&] { return &FindSchedule(name); });
    names.push_back(name);
    at = end + 1;
  }
  return names;
}

PlanRequest RequestOf(const PlanCommand& options) {
  CheckMost("`gpus`", options.gpus, kMostGpus);
  CheckMost("`global_batch`", options.global_batch, kMostSequences);
  CheckMost("`top`", options.top, kMostRows);
  PlanRequest request;
  request.gpu = GpuOf(options.gpu);
  if (!options.memory.empty()) {
    request.gpu.memory = ReadOption([&] { return ParseBytes(options.memory, "`memory`"); });
  }
  request.gpus = options.gpus;
  request.global_batch = options.global_batch;
  request.sequence = options.seq;
  request.fp8 = options.dtype == "fp8";
  if (request.fp8 && request.gpu.fp8 == 0) {
    throw Error("`dtype`: the " + request.gpu.name + " has no fp8; use bf16");
  }
  if (!options.fix.empty()) request.fixed = ReadOption([&] { return ParseFixed(options.fix); });
  if (!options.only.empty()) request.schedules = SchedulesOf(options.only);
  if (!options.framework.empty()) {
    request.framework = ParseFramework(options.framework);
    const std::vector<std::string> only =
        options.only.empty() ? std::vector<std::string>() : request.schedules;
    request.schedules = ReadOption([&] { return SchedulesFor(request.framework, only); });
  }
  request.budget = ParseDuration("--budget", options.budget);
  request.top = static_cast<size_t>(options.top);
  const std::string text = ReadFile(options.model, kMaxHfConfigBytes);
  request.model =
      ReadHfConfig(text, options.model == "-" ? "standard input" : options.model, options.like);
  return request;
}

/// Writes costs, plan and command of the best row, and what starts its framework.
void WriteBest(const PlanRequest& request, const PlannerRow& best, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(folder + ": cannot be made: " + error.message());
  const std::string at = folder.ends_with('/') ? folder : folder + "/";
  WriteFile(at + "costs.json", PlannerCosts(request).TextOf(best.configuration));
  WritePlanFile(at + "plan.json", best.plan);
  WriteFile(at + "command.txt", CompileLine(best, at + "costs.json", at + "plan.json") + "\n");
  for (const LaunchFile& file : LaunchFiles(request.LaunchOf(best.configuration), best.plan, at)) {
    WriteFile(file.path, file.text);
  }
}

int RunPlan(const PlanCommand& options) {
  const PlanRequest request = RequestOf(options);
  std::optional<ProgressLine> progress("planning");
  const Interrupt interrupt;
  const PlannerResult result = FindPlans(
      request, [&](double done) { progress->Say("planning, " + FormatPercent(done) + " done"); },
      &Interrupt::stop());
  progress.reset();
  if (!options.output.empty()) WriteBest(request, result.rows.front(), options.output);
  if (options.json) {
    WriteFile("-", PlansToJson(request, result));
  } else {
    Print(WritePlans(request, result));
  }
  if (interrupt.happened()) Say("contraflow: interrupted: these rows are the best so far");
  return kExitFine;
}

std::function<int()> AddPlanCommand(CLI::App* app) {
  const auto options = std::make_shared<PlanCommand>();
  Require(AddText(app, "--model", &options->model, "CONFIG.json",
                  "config.json of a Hugging Face model; - is standard input"));
  AddText(app, "--like", &options->like, "TYPE",
          "read it as a model of this \"model_type\", where its own is not known");
  Require(AddText(app, "--gpu", &options->gpu, "NAME", kGpuHelp));
  Require(AddInteger(app, "--gpus", &options->gpus, "N", "GPUs in all", 1));
  Require(AddInteger(app, "--global-batch", &options->global_batch, "N",
                     "sequences of a step, of all GPUs", 1));
  Require(AddInteger(app, "--seq", &options->seq, "N", "tokens of a sequence", 1));
  AddChoice(app, "--dtype", &options->dtype, "bf16|fp8", "what matmuls take (default: bf16)");
  AddText(app, "--memory", &options->memory, "BYTES",
          "of a GPU, for all that it holds (default: as the GPU has)");
  AddText(app, "--fix", &options->fix, "KEY=N,...",
          "configurations with these values alone: tp, ep, pp, dp,\nmicro-batch or zero");
  AddText(app, "--only", &options->only, "NAME,...",
          "schedules to compile (default: auto); contraflow list\nshows them all");
  AddChoice(app, "--for", &options->framework, "megatron|torch|torchtitan",
            "plans that Megatron-LM, contraflow.torch or torchtitan\nruns; -o has its arguments or "
            "script, too");
  AddText(app, "--budget", &options->budget, "TIME",
          "of the whole command, about; counted in work, so that\nthe answer is the same "
          "everywhere (default: 20s)");
  AddInteger(app, "--top", &options->top, "N", "rows (default: 5)", 1);
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
