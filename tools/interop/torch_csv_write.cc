#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/interop/interop.h"

namespace contraflow {
namespace {

std::string Cell(const char* type, int stage, int microbatch) {
  return std::to_string(stage) + type + std::to_string(microbatch);
}

/// "" for what has no cell.
std::string CellOf(const Instruction& i) {
  if (i.op == Op::F) return Cell("F", i.stage, i.microbatch);
  if (i.op == Op::B) return Cell("I", i.stage, i.microbatch);
  if (i.op == Op::W) return Cell("W", i.stage, i.microbatch);
  if (i.op == Op::BW) return Cell("B", i.stage, i.microbatch);
  if (i.op == Op::FB) {
    return "(" + Cell("F", i.stage, i.microbatch) + ";" +
           Cell("B", i.back_stage, i.back_microbatch) + ")OVERLAP_F_B";
  }
  return "";
}

}  // namespace

std::string WriteTorchCsv(const Plan& plan) {
  if (plan.layers > 0) {
    throw Error(
        "the plan has components, for which PyTorch's CSV has no names; compile it with --level "
        "comm or compute");
  }
  if (RecomputedCells(plan).any()) {
    throw Error(
        "the plan recomputes (R), for which PyTorch's CSV has no name; compile it with --recompute "
        "none");
  }
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (size_t stage = 0; stage < holders.size(); ++stage) {
    if (holders[stage].size() == 1) continue;
    throw Error("stage " + std::to_string(stage) + " lives on ranks " +
                std::to_string(holders[stage][0]) + " and " + std::to_string(holders[stage][1]) +
                "; PyTorch's schedules have one rank for each stage (dualpipe-v has the same "
                "overlap with one copy)");
  }
  std::string csv;
  for (const Program& program : plan.programs) {
    std::string row;
    for (const Instruction& instruction : program) {
      const std::string cell = CellOf(instruction);
      if (!cell.empty()) row += (row.empty() ? "" : ",") + cell;
    }
    csv += row + "\r\n";
  }
  return csv;
}

}  // namespace contraflow
