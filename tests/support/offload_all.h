#pragma once

#include "compiler/plan/plan.h"

namespace contraflow {

/// The compute order with OFFLOAD after each forward and RELOAD before each backward, but for
/// chunks that are recomputed.
inline Plan OffloadAll(Plan plan) {
  const RecomputedCells recomputed(plan);
  for (Program& program : plan.programs) {
    Program with;
    for (const Instruction& i : program) {
      if (HasBackward(i.op) && !recomputed.Has(BackStage(i), BackMicrobatch(i))) {
        with.push_back(CellOp(Op::RELOAD, BackStage(i), BackMicrobatch(i)));
      }
      with.push_back(i);
      if (HasForward(i.op) && !recomputed.Has(i.stage, i.microbatch)) {
        with.push_back(CellOp(Op::OFFLOAD, i.stage, i.microbatch));
      }
    }
    program = std::move(with);
  }
  return plan;
}

}  // namespace contraflow
