#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/interop/interop.h"
#include "tools/report/promise.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

struct ImportOptions {
  std::string file, from, output = "-";
  std::string level = "comm";
  bool remake_comm = false;
  CostsOption costs;
};

int Import(const ImportOptions& options) {
  RefuseOverwrite({"`output`", options.output},
                  {{"the schedule", options.file}, {"`costs`", options.costs.file.value_or("")}});
  const Level level = ReadOption([&] { return ParseLevel(options.level); });
  std::vector<std::string> assumed;
  CostModel costs = ResolveCosts(options.costs, UnitCosts(), &assumed);
  if (costs.moe && level >= Level::kComponent) RefuseChunkCosts(options.costs);
  const std::string place = options.file == "-" ? "standard input" : options.file;
  TorchCsvNotes notes;
  Plan plan = ReadTorchCsv(ReadFile(options.file, kMaxCsvBytes), place, &notes);
  RequireLossesInTurn(plan, place);
  if (notes.forwards_alone) costs = CostsOfForwards(std::move(costs), place);
  if (!notes.forwards_alone) Warn(assumed);
  SayNotes(notes);
  const bool has_messages = plan.level == Level::kComm;
  const bool keeps = has_messages && level == Level::kComm && !options.remake_comm;
  std::string said = place + ": ";
  if (keeps) {
    plan = WithPromise(std::move(plan), costs);
    RequireSound(plan, place);
    said +=
        "keeps its " + FormatCount(MessageCount(plan)) + " messages; no deadlock " +
        std::string(QueuesOf(plan.semantics)) +
        (plan.semantics == Semantics::kRank ? "" : " (contraflow verify says why not with fewer)");
  } else {
    if (has_messages) plan = WithoutMessages(std::move(plan));
    RequireSound(plan, place);
    const LowerOptions lower = {.target = level, .overlap = OverlapOf(options.costs, costs)};
    plan = Lower(std::move(plan), costs, lower);
    said += has_messages ? "its messages are dropped" : "has no messages";
    said += level == Level::kCompute ? "" : "; made " + FormatCount(MessageCount(plan));
  }
  WritePlanFile(options.output, plan);
  if (options.output == "-") {
    Say(said);
  } else if (GetVerbosity() != Verbosity::kQuiet) {
    Print(said + "\n");
  }
  return kExitFine;
}

std::function<int()> AddImport(CLI::App* app) {
  const auto options = std::make_shared<ImportOptions>();
  app->add_option("FILE", options->file, "CSV with one row per rank; - is standard input")
      ->type_name("")
      ->required();
  AddChoice(app, "--from", &options->from, "torch-csv",
            "PyTorch's CSV; at level comm its messages are kept and proven, if it has\nany, else "
            "Contraflow makes them")
      ->required();
  AddFlag(app, "--remake-comm", &options->remake_comm,
          "drop the file's messages and make new ones, sound with one queue per rank");
  AddCostsOptions(app, &options->costs, "f = b = w = 1, without a unit of time");
  app->add_option("--level", options->level,
                  "how far to lower: compute, comm, component or buffer; see\ncontraflow compile "
                  "--help (default: comm)")
      ->type_name("LEVEL");
  AddText(
      app, "-o,--output", &options->output, "FILE",
      "plan file; - is stdout (default), .cbor is binary,\nFOLDER/ is one binary file per rank");
  AddQuiet(app);
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
