#include <CLI/CLI.hpp>
#include <memory>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/interop/interop.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

/// Room for a hundred million cells.
constexpr int64_t kMaxBytes = int64_t{4} << 30;

struct ImportOptions {
  std::string file, from, output;
  std::string level = "comm";
  CostsOption costs;
};

int Import(const ImportOptions& options) {
  RefuseOverwrite({"--output", options.output},
                  {{"the schedule", options.file}, {"--costs", options.costs.file.value_or("")}});
  const Level level = ReadOption([&] { return ParseLevel(options.level); });
  const CostModel costs = ResolveCosts(options.costs, UnitCosts());
  if (costs.moe && level >= Level::kComponent) RefuseChunkCosts(options.costs);
  const std::string place = options.file == "-" ? "standard input" : options.file;
  Plan order = ReadTorchCsv(ReadFile(options.file, kMaxBytes), place);
  RequireSound(order, place);
  const LowerOptions lower = {
      .target = level, .overlap = OverlapOf(options.costs, costs), .memory_limit = {}};
  WritePlanFile(options.output, Lower(std::move(order), costs, lower));
  return kExitFine;
}

std::function<int()> AddImport(CLI::App* app) {
  const auto options = std::make_shared<ImportOptions>();
  app->add_option("FILE", options->file, "CSV with one row per rank; - is standard input")
      ->type_name("")
      ->required();
  AddChoice(app, "--from", &options->from, "torch-csv",
            "PyTorch's CSV, with or without communication; Contraflow makes its\nown messages")
      ->required();
  AddCostsOptions(app, &options->costs, "f = b = w = 1, without a unit of time");
  app->add_option(
         "--level", options->level,
         "how far to lower: compute, comm, component or buffer; see\ncontraflow compile --help "
         "(default: comm)")
      ->type_name("LEVEL");
  AddText(app, "-o,--output", &options->output, "FILE",
          "plan file; - is stdout, .cbor is binary,\nFOLDER/ is one binary file per rank")
      ->required();
  return [options] { return Import(*options); };
}

}  // namespace

const Command kImportCommand = {
    .name = "import",
    .summary = "make a plan from a schedule written for PyTorch's pipelining, and prove it",
    .example = "contraflow import schedule.csv --from torch-csv -o imported.json",
    .add = AddImport,
};

}  // namespace contraflow
