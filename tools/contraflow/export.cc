#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/interop/interop.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct ExportOptions {
  std::string plan, to, output;
  std::string form = "compute";
  std::optional<std::string> torch;
  std::optional<int64_t> layers;
};

TorchCsvOptions TorchOptionsOf(const ExportOptions& options) {
  TorchCsvOptions torch = {.messages = options.form == "compute_comms"};
  if (options.torch) torch.version = ReadOption([&] { return ParseTorchVersion(*options.torch); });
  return torch;
}

std::string Exported(const Plan& plan, const ExportOptions& options) {
  if (options.to == "torch-csv") return WriteTorchCsv(plan, TorchOptionsOf(options));
  if (options.to == "dot") return WriteDot(plan);
  if (options.to == "megatron-layout") {
    return WriteMegatronLayout(plan, options.layers);
  }
  return WriteTrace(plan, Simulate(plan, CostsForPlan({}, plan)).timeline);
}

int Export(const ExportOptions& options) {
  if (options.layers && options.to != "megatron-layout") {
    throw UsageError("--layers: is for --to megatron-layout only");
  }
  if (options.to != "torch-csv" && (options.form != "compute" || options.torch)) {
    throw UsageError(std::string(options.torch ? "--torch" : "--form") +
                     ": is for --to torch-csv only");
  }
  TorchOptionsOf(options);
  RefuseOverwrite({"--output", options.output}, {{"the plan", options.plan}});
  const Plan plan = ReadPlanFile(options.plan);
  RequireSound(plan, options.plan);
  WriteFile(options.output, Exported(plan, options));
  if (options.to == "torch-csv") {
    for (const std::string& note : TorchNotes(plan)) {
      std::fprintf(stderr, "contraflow: note: %s\n", note.c_str());
    }
  }
  return kExitFine;
}

std::function<int()> AddExport(CLI::App* app) {
  const auto options = std::make_shared<ExportOptions>();
  AddPlan(app, &options->plan);
  AddChoice(app, "--to", &options->to, "torch-csv|chrome-trace|dot|megatron-layout",
            "PyTorch's compute order; the predicted timeline; a graph for\n"
            "Graphviz; the arguments that make Megatron-LM run the plan")
      ->required();
  AddChoice(app, "--form", &options->form, "compute|compute_comms",
            "for torch-csv: the compute order alone, from which PyTorch makes\nmessages, or with "
            "those of the plan (default: compute)");
  app->add_option("--torch", options->torch,
                  "for torch-csv: the release that will read it, which decides what\ncells there "
                  "are (default: 2.15)")
      ->type_name("VERSION");
  AddInteger(app, "--layers", &options->layers, "N",
             "transformer layers of the model, for megatron-layout\n"
             "(default: those of the costs, else one per stage)");
  AddText(app, "-o,--output", &options->output, "FILE", "where to write; - is stdout")->required();
  return [options] { return Export(*options); };
}

}  // namespace

const Command kExportCommand = {
    .name = "export",
    .summary =
        "write a plan for PyTorch's pipelining, Megatron-LM, Chrome's trace viewer or Graphviz",
    .example = "contraflow export plan.json --to chrome-trace -o trace.json",
    .add = AddExport,
};

}  // namespace contraflow
