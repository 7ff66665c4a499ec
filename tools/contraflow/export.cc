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
  std::string form;  ///< empty: that of `to`
  std::optional<std::string> torch, layers;

  bool titan() const { return to == "torchtitan"; }
};

TorchCsvOptions TorchOptionsOf(const ExportOptions& options) {
  TorchCsvOptions torch = {.messages = options.form == "compute_comms"};
  if (options.torch) torch.version = ReadOption([&] { return ParseTorchVersion(*options.torch); });
  return torch;
}

std::string TitanForm(const ExportOptions& options) {
  return options.form.empty() ? "python" : options.form;
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
  const bool csv = options.to == "torch-csv";
  if (options.layers && options.to != "megatron-layout" && !options.titan()) {
    throw UsageError("`layers`: is for `to` megatron-layout and torchtitan only");
  }
  if (options.torch && !csv) throw UsageError("`torch`: is for `to` torch-csv only");
  if (!options.form.empty()) {
    if (!csv && !options.titan()) {
      throw UsageError("`form`: is for `to` torch-csv and torchtitan only");
    }
    if (csv == IsTorchtitanForm(options.form)) {
      throw UsageError("`form`: must be " +
                       std::string(csv ? "compute or compute_comms for `to` torch-csv, is "
                                       : "python, flags or toml for `to` torchtitan, is ") +
                       options.form);
    }
  }
  TorchOptionsOf(options);
}

/// Writes the values and their CSV.
void ExportTorchtitan(const Plan& plan, const ExportOptions& options) {
  const std::string csv = CsvBeside(options.output), form = TitanForm(options);
  std::string values;
  // Layers that are not known come first: with them every form of the file is wrong.
  if (plan.routes.size() == 1) values = WriteTorchtitan(plan, csv, options.layers, form);
  const std::string flaw = FlawOfTorchtitanFile(options.output, form);
  if (!flaw.empty()) throw UsageError("`output`: " + flaw);
  WriteFile(csv, WriteTorchCsv(plan));
  WriteFile(options.output, values);
}

int Export(const ExportOptions& options) {
  CheckFlags(options);
  const std::string csv = options.titan() ? CsvBeside(options.output) : "";
  RefuseOverwrite({"the CSV", csv}, {{"the plan", options.plan}});
  RefuseOverwrite({"`output`", options.output}, {{"the plan", options.plan}});
  const Plan plan = ReadPlanFile(options.plan);
  RequireSound(plan, options.plan);
  if (options.titan()) {
    ExportTorchtitan(plan, options);
  } else {
    WriteFile(options.output, Exported(plan, options));
  }
  if (options.to == "torch-csv" || options.titan()) {
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
            "torch-csv: PyTorch's compute order; torchtitan: that, and its\n"
            "configuration; chrome-trace: the predicted timeline; dot: a graph for\n"
            "Graphviz; megatron-layout: arguments of Megatron-LM")
      ->required();
  AddChoice(
      app, "--form", &options->form, "compute|compute_comms|python|flags|toml",
      "torch-csv: compute (PyTorch makes the messages; default) or\ncompute_comms (the plan's); "
      "torchtitan: python (a function and flags;\ndefault), flags, or toml, which no release "
      "since February 2026 reads");
  app->add_option("--torch", options->torch,
                  "torch-csv: the release that will read it (default: 2.15)")
      ->type_name("VERSION");
  app->add_option("--layers", options->layers,
                  "megatron-layout, torchtitan: transformer layers of the model or of each\n"
                  "stage (6,5x6,4), or a layout such as Et*6|(t*6|)*6t*4L (default: from\n"
                  "the costs, else one a stage for megatron-layout)")
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
