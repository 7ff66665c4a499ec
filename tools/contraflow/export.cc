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
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/interop/interop.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct ExportOptions {
  std::string plan, to, output = "-";
  std::string form = "compute";
  std::optional<std::string> torch, layers;
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

void CheckFlags(const ExportOptions& options) {
  const bool titan = options.to == "torchtitan";
  if (options.layers && options.to != "megatron-layout" && !titan) {
    throw UsageError("--layers: is for --to megatron-layout and torchtitan only");
  }
  if (titan && (options.output == "-" || CsvBeside(options.output) == options.output)) {
    throw UsageError(
        "--output: torchtitan gets a file of values and a CSV of that name beside it; "
        "give a file such as run.toml");
  }
  if (options.to != "torch-csv" && (options.form != "compute" || options.torch)) {
    throw UsageError(std::string(options.torch ? "--torch" : "--form") +
                     ": is for --to torch-csv only");
  }
  TorchOptionsOf(options);
}

int Export(const ExportOptions& options) {
  CheckFlags(options);
  const std::string csv = options.to == "torchtitan" ? CsvBeside(options.output) : "";
  RefuseOverwrite({"the CSV", csv}, {{"the plan", options.plan}});
  RefuseOverwrite({"--output", options.output}, {{"the plan", options.plan}});
  const Plan plan = ReadPlanFile(options.plan);
  RequireSound(plan, options.plan);
  if (!csv.empty()) {
    WriteTorchtitanFiles(plan, options.output, options.layers);
  } else {
    WriteFile(options.output, Exported(plan, options));
  }
  if (options.to == "torch-csv" || !csv.empty()) {
    for (const std::string& note : TorchNotes(plan)) {
      Say("contraflow: note: " + note);
    }
  }
  return kExitFine;
}

std::function<int()> AddExport(CLI::App* app) {
  const auto options = std::make_shared<ExportOptions>();
  AddPlan(app, &options->plan);
  AddChoice(app, "--to", &options->to, "torch-csv|torchtitan|chrome-trace|dot|megatron-layout",
            "PyTorch's compute order; that and the values of torchtitan's\n"
            "configuration; the predicted timeline; a graph for Graphviz; the\n"
            "arguments that make Megatron-LM run the plan")
      ->required();
  AddChoice(app, "--form", &options->form, "compute|compute_comms",
            "for torch-csv: the compute order alone, from which PyTorch makes\nmessages, or with "
            "those of the plan (default: compute)");
  app->add_option("--torch", options->torch,
                  "for torch-csv: the release that will read it, which decides what\ncells there "
                  "are (default: 2.15)")
      ->type_name("VERSION");
  app->add_option("--layers", options->layers,
                  "for megatron-layout and torchtitan, the layers of the model: how many\n"
                  "transformer layers it has or each stage has (6,5x6,4), or a layout\n"
                  "such as Et*6|(t*6|)*6t*4L (default: those of the costs, else one\n"
                  "per stage)")
      ->type_name("N|N,N,..|LAYOUT");
  AddText(app, "-o,--output", &options->output, "FILE",
          "where to write; - is stdout (default); torchtitan needs a file");
  AddQuiet(app);
  return [options] { return Export(*options); };
}

}  // namespace

const Command kExportCommand = {
    .name = "export",
    .summary =
        "write a plan for PyTorch, torchtitan, Megatron-LM, Chrome's trace viewer or Graphviz",
    .example = "contraflow export plan.json --to chrome-trace -o trace.json",
    .add = AddExport,
};

}  // namespace contraflow
