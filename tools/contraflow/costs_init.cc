#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/planner/calibration.h"
#include "tools/profile/costs_file.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/setup_options.h"

namespace contraflow {
namespace {

struct CostsInitOptions {
  std::string config, like, gpu, out = "-", dtype, fp8;
  KeptFlags kept;
  std::string measured;
  int tp = 1, cp = 1, ep = 1, etp = 1, seq = 4096, micro_batch = 1, gpus = 0;
  bool tp_overlap = false;
  std::vector<std::string> efficiencies;
  double wait = CostSetup().wait;
  std::vector<CLI::Option*> of_model;  ///< the options that say something about --hf
};

CostSetup SetupOf(const CostsInitOptions& options, const GpuSheet& gpu) {
  CostSetup setup;
  setup.gpu = &gpu;
  setup.tensor_parallel = options.tp;
  setup.context_parallel = options.cp;
  setup.expert_parallel = options.ep;
  setup.expert_tensor = options.etp;
  setup.sequence = options.seq;
  setup.micro_batch = options.micro_batch;
  setup.fp8 = options.dtype == "fp8" || !options.fp8.empty();
  if (!options.fp8.empty()) setup.recipe = &FindFp8Recipe(options.fp8);
  if (setup.fp8 && options.dtype == "bf16") {
    throw UsageError("`fp8`: says how fp8 is scaled, and `dtype` is bf16; drop one of them");
  }
  setup.efficiency = EfficienciesOf(gpu, setup.fp8);
  for (const std::string& text : options.efficiencies) {
    try {
      ParseEfficiencies(text, &setup.efficiency);
    } catch (const Error& error) {
      throw UsageError(std::string("`efficiency`: ") + error.what());
    }
  }
  if (!(options.wait >= 0 && options.wait <= 1)) {
    throw UsageError("`wait`: must be a share in 0..1, is " + FormatReal(options.wait));
  }
  setup.wait = options.wait;
  setup.gpus = setup.stage_gpus = options.gpus;
  setup.tp_overlap = options.tp_overlap;
  ReadKept(options.kept, &setup);
  return setup;
}

/// Scales the efficiencies so that a measured run of the model is predicted as it was.
void ScaleToRun(const CostsInitOptions& options, const ModelShape& model, CostSetup* setup) {
  if (!options.efficiencies.empty()) {
    throw UsageError("`measured`: scales the efficiencies of the GPU; leave `efficiency` out");
  }
  PlanRequest request;
  request.model = model;
  request.gpu = *setup->gpu;
  request.sequence = setup->sequence;
  request.fp8 = setup->fp8;
  request.tp_overlap = setup->tp_overlap;
  request.optimizer = setup->optimizer;
  request.gpus = options.gpus;
  ReadOption([&] { ScaleToRun(options.measured, &request); });
  const CostSetup scaled = request.SetupOf({});
  setup->efficiency = scaled.efficiency;
  setup->efficiency_note = scaled.efficiency_note;
}

std::string EstimatedCosts(const CostsInitOptions& options) {
  const GpuSheet gpu = GpuOf(options.gpu);
  CostSetup setup = SetupOf(options, gpu);
  const std::string place = options.config == "-" ? "standard input" : options.config;
  const std::string text = ReadFile(options.config, kMaxHfConfigBytes);
  const ModelShape model = ReadHfConfig(text, place, options.like);
  if (!model.unread.empty()) {
    Say("contraflow: note: " + place + ": not read, and not in these costs: " + model.unread);
  }
  if (!options.measured.empty()) ScaleToRun(options, model, &setup);
  for (const std::string& note : model.notes) Say("contraflow: note: " + place + ": " + note);
  return WriteCostsByLayer(model, setup, CostsOf(model, setup));
}

}  // namespace

std::function<int()> AddCostsInit(CLI::App* init) {
  const auto options = std::make_shared<CostsInitOptions>();
  CLI::Option* const hf = AddText(init, "--hf", &options->config, "CONFIG.json",
                                  "config.json of a Hugging Face model; - is standard input\n"
                                  "(default: write a template)");
  const auto of_model = [&](CLI::Option* option) { options->of_model.push_back(option); };
  of_model(AddText(init, "--like", &options->like, "TYPE",
                   "read --hf as a model of this \"model_type\", where its\n"
                   "own is not known"));
  of_model(AddText(init, "--gpu", &options->gpu, "NAME", kGpuHelp));
  of_model(
      AddInteger(init, "--tp", &options->tp, "N", "GPUs that split each matrix (default: 1)", 1));
  of_model(
      AddInteger(init, "--cp", &options->cp, "N", "GPUs that split each sequence (default: 1)", 1));
  of_model(AddInteger(init, "--ep", &options->ep, "N",
                      "groups of GPUs that split the experts (default: 1)", 1));
  of_model(AddInteger(init, "--etp", &options->etp, "N",
                      "GPUs that split each expert, at most --tp (default: 1)", 1));
  of_model(
      AddInteger(init, "--seq", &options->seq, "N", "tokens of a sequence (default: 4096)", 1));
  of_model(AddInteger(init, "--micro-batch", &options->micro_batch, "N",
                      "sequences of a micro-batch (default: 1)", 1));
  of_model(
      AddChoice(init, "--dtype", &options->dtype, "bf16|fp8", "what matmuls take (default: bf16)"));
  of_model(AddChoice(init, "--fp8", &options->fp8, "tensor|block|mx",
                     "matmuls take fp8 with a scale for each tensor, for blocks of\n128 values, or "
                     "for 32 values (default of --dtype fp8: tensor)"));
  for (CLI::Option* option : AddKeptOptions(init, &options->kept)) of_model(option);
  of_model(AddTexts(init, "--efficiency", &options->efficiencies,
                    "share of the GPU's best that a kind of work reaches,\n"
                    "as in matmul=0.6,memory=0.8; the file lists all kinds")
               ->type_name("KIND=X,..."));
  of_model(
      AddText(init, "--measured", &options->measured, "KEY=X,...",
              "a run of the model on this GPU, as contraflow plan takes it,\nwith its gpus and "
              "global-batch; scales the efficiencies"));
  of_model(AddNumber(init, "--wait", &options->wait, "X",
                     "wait before an all-to-all, as a share of a layer's\n"
                     "compute time (default: 0.1)"));
  of_model(AddInteger(init, "--gpus", &options->gpus, "N",
                      "GPUs of the run: messages and sums stay in a node if all\n"
                      "are in one (default: many nodes)",
                      1));
  of_model(AddFlag(init, "--tp-overlap", &options->tp_overlap,
                   "overlap messages of --tp with matmuls, all but one part of N"));
  AddText(init, "-o,--output", &options->out, "FILE", "the cost file (default: -, stdout)");
  // The description is also a line of a list, so that the empty line after it comes from here.
  UseHelpFormatter(init);
  init->get_formatter()->label("Usage", "\nUsage");
  init->footer("Example: contraflow costs init -o costs.json");
  return [options, hf] {
    if (hf->count() == 0) {
      for (const CLI::Option* option : options->of_model) {
        if (option->count() == 0) continue;
        throw UsageError("costs init: " + FieldOf(option->get_name()) +
                         " says something about `hf`, which is missing; add it");
      }
      WriteFile(options->out, CostsTemplate());
      return kExitFine;
    }
    if (options->gpu.empty()) {
      throw UsageError("costs init: `hf` needs `gpu`; see contraflow costs init --help");
    }
    RefuseOverwrite({"-o", options->out}, {{"`hf`", options->config}, {"`gpu`", options->gpu}});
    WriteFile(options->out, EstimatedCosts(*options));
    return kExitFine;
  };
}

}  // namespace contraflow
