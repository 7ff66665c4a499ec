#include <CLI/CLI.hpp>
#include <memory>

#include "compiler/file.h"
#include "compiler/plan_io.h"
#include "compiler/simulate.h"
#include "compiler/trace_io.h"
#include "tools/cmd.h"
#include "tools/costs_option.h"
#include "tools/exit.h"
#include "tools/options.h"
#include "tools/report.h"
#include "tools/torch_csv.h"

namespace contraflow {
namespace {

struct ExportOptions {
  std::string plan, to, output;
};

int Export(const ExportOptions& options) {
  const Plan plan = ReadPlanFile(options.plan);
  RequireSound(plan, options.plan);
  if (options.to == "torch-csv") {
    WriteFile(options.output, WriteTorchCsv(plan));
  } else {
    const Simulation simulation = Simulate(plan, CostsForPlan({}, plan));
    WriteFile(options.output, WriteTrace(plan, simulation.timeline));
  }
  return kExitFine;
}

std::function<int()> Add(CLI::App* app) {
  const auto options = std::make_shared<ExportOptions>();
  AddPlan(app, &options->plan);
  AddChoice(app, "--to", &options->to, "torch-csv|chrome-trace",
            "PyTorch's compute order, or the predicted timeline")
      ->required();
  app->add_option("-o,--output", options->output, "- is stdout")->type_name("FILE")->required();
  return [options] { return Export(*options); };
}

}  // namespace

const Command kExportCommand = {
    .name = "export",
    .summary = "write a plan for PyTorch's pipelining or for Chrome's trace viewer",
    .example = "contraflow export plan.json --to chrome-trace -o trace.json",
    .add = Add,
};

}  // namespace contraflow
