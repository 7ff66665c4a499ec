#include "compiler/plan/recomputed.h"

#include <algorithm>

#include "compiler/plan/error.h"

namespace contraflow {

RecomputedCells::RecomputedCells(const Plan& plan)
    : microbatches_(static_cast<size_t>(plan.microbatches)) {
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (!IsRecompute(i.op)) continue;
      chunks_.resize(static_cast<size_t>(plan.stages) * microbatches_);
      chunks_[At(i.stage, i.microbatch)] = true;
    }
  }
}

bool RecomputedCells::HasStage(int stage) const {
  if (!any()) return false;
  const auto begin = chunks_.begin() + static_cast<std::ptrdiff_t>(At(stage, 0));
  const auto end = begin + static_cast<std::ptrdiff_t>(microbatches_);
  return std::find(begin, end, true) != end;
}

CellBytes BytesOfCell(const CostModel& costs, bool recomputes) {
  if (!costs.memory || costs.memory->activation_bytes == 0) return {};
  CellBytes bytes = {.activation = costs.memory->activation_bytes,
                     .stash = costs.memory->w_stash_bytes};
  if (!recomputes) return bytes;
  const std::optional<int64_t> input = InputBytes(costs);
  if (!input) {
    throw Error(
        "the costs do not say what a recomputed chunk holds between F and R, its stage input; give "
        "\"memory\": {\"input_bytes\": ..}, or \"bytes\" under \"comm\"");
  }
  bytes.input = *input;
  return bytes;
}

}  // namespace contraflow
