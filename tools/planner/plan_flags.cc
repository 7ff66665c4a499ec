#include "tools/planner/plan_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/interop/launch.h"
#include "tools/planner/calibration.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/setup_options.h"

namespace contraflow {
namespace {

constexpr int64_t kLeastMemory = 1'000'000;
constexpr int kMostGpus = 1 << 17, kMostSequences = 1 << 20, kMostRows = 100;

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

/// Name of the activations that a framework keeps.
const char* ActivationsOf(Framework framework) {
  switch (framework) {
    case Framework::kMegatron:
      return "megatron";
    case Framework::kTorch:
    case Framework::kTorchtitan:
      return "torch";
    case Framework::kAny:
      break;
  }
  return "ideal";
}

}  // namespace

PlanRequest ResolvePlan(const PlanFlags& flags) {
  CheckMost("`gpus`", flags.gpus, kMostGpus);
  CheckMost("`global_batch`", flags.global_batch, kMostSequences);
  CheckMost("`top`", flags.top, kMostRows);
  PlanRequest request;
  request.gpu = GpuOf(flags.gpu);
  if (!flags.memory.empty()) {
    request.gpu.memory = ReadOption([&] { return ParseBytes(flags.memory, "`memory`"); });
    if (request.gpu.memory < kLeastMemory) {
      throw UsageError("`memory`: " + FormatBytes(request.gpu.memory) +
                       " is less than a GPU has; give a unit, as in 24GB");
    }
  }
  request.gpus = flags.gpus;
  request.global_batch = flags.global_batch;
  request.sequence = flags.seq;
  request.fp8 = flags.dtype == "fp8";
  request.tp_overlap = flags.tp_overlap;
  if (request.fp8 && request.gpu.fp8 == 0) {
    throw Error("`dtype`: the " + request.gpu.name + " has no fp8; use bf16");
  }
  if (!flags.fix.empty()) request.fixed = ReadOption([&] { return ParseFixed(flags.fix); });
  if (!flags.only.empty()) request.schedules = SchedulesOf(flags.only);
  if (!flags.framework.empty()) {
    request.framework = ReadOption([&] { return ParseFramework(flags.framework); });
    const auto only = flags.only.empty() ? std::vector<std::string>() : request.schedules;
    request.schedules = ReadOption([&] { return SchedulesFor(request.framework, only); });
  }
  KeptFlags kept = flags.kept;
  if (kept.optimizer.empty()) kept.optimizer = OptimizerOf(request.framework);
  if (kept.activations.empty()) kept.activations = ActivationsOf(request.framework);
  CostSetup setup;
  ReadKept(kept, &setup);
  request.optimizer = setup.optimizer;
  request.activations = setup.activations;
  request.workspace = setup.workspace;
  if (request.workspace >= request.gpu.memory) {
    throw UsageError("`workspace`: leaves nothing of the " + FormatBytes(request.gpu.memory) +
                     " of a GPU");
  }
  request.budget = ParseDuration("--budget", flags.budget);
  request.top = static_cast<size_t>(flags.top);
  const std::string text = flags.config ? *flags.config : ReadFile(flags.model, kMaxHfConfigBytes);
  request.model =
      ReadHfConfig(text, flags.model == "-" ? "standard input" : flags.model, flags.like);
  if (!flags.measured.empty()) {
    ReadOption([&] { ScaleToRun(flags.measured, &request); });
  }
  return request;
}

void AddPlanOptions(CLI::App* app, PlanFlags* flags) {
  Require(AddText(app, "--model", &flags->model, "CONFIG.json",
                  "config.json of a Hugging Face model; - is standard input"));
  AddText(app, "--like", &flags->like, "TYPE", "read an unknown \"model_type\" as this one");
  Require(AddText(app, "--gpu", &flags->gpu, "NAME", kGpuHelp));
  Require(AddInteger(app, "--gpus", &flags->gpus, "N", "GPUs in all", 1));
  Require(AddInteger(app, "--global-batch", &flags->global_batch, "N",
                     "sequences of a step, of all GPUs", 1));
  Require(AddInteger(app, "--seq", &flags->seq, "N", "tokens of a sequence", 1));
  AddChoice(app, "--dtype", &flags->dtype, "bf16|fp8", "type of matmul operands (default: bf16)");
  AddFlag(app, "--tp-overlap", &flags->tp_overlap,
          "overlap messages of tp with matmuls, all but one part of tp");
  AddKeptOptions(app, &flags->kept);
  AddText(app, "--memory", &flags->memory, "BYTES", "memory of a GPU (default: from its sheet)");
  AddText(
      app, "--fix", &flags->fix, "KEY=N,...",
      "only configurations with these values: tp, cp, ep, etp, pp,\nvpp (stages a rank), dp (gpus "
      "/ tp / cp / pp, of which ep is\na part), micro-batch or zero");
  AddText(app, "--only", &flags->only, "NAME,...",
          "schedules to compile (default: auto); contraflow list\nshows them all");
  AddChoice(app, "--for", &flags->framework, "megatron|torch|torchtitan",
            "only plans that Megatron-LM, contraflow.torch or torchtitan\nruns; -o then has the "
            "files that start it");
  AddText(app, "--measured", &flags->measured, "KEY=X,...",
          "a run of the model on this GPU: tokens/s/gpu=N or step=TIME,\nwith tp, pp and so on, "
          "schedule, recompute; scales the\nefficiencies to predict that run");
  AddText(app, "--budget", &flags->budget, "TIME",
          "about the processor time of the command; counted in work, so\nevery machine gives the "
          "same answer (default: 20s)");
  AddInteger(app, "--top", &flags->top, "N", "rows (default: 5)", 1);
}

}  // namespace contraflow
