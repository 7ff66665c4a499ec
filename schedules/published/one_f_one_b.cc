// 1F1B, also PipeDream-Flush (Narayanan et al., arXiv 2104.04473): rank r runs P-1-r forwards
// ahead, then one forward and one full backward in turn, then the backwards that are left.
//
//   rank 0   F0 F1 F2             BW0  F3  BW1     BW2     BW3
//   rank 1      F0 F1      BW0  F2  BW1  F3  BW2     BW3
//   rank 2         F0  BW0  F1  BW1  F2  BW2  F3  BW3
//
// The bubble of GPipe with at most P - r activations.

#include <algorithm>

#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

Plan GenerateOneFOneB(const Spec& spec) {
  Plan plan = LinearPlan(spec);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.program(rank);
    const int warmup = std::min(spec.ranks - 1 - rank, spec.microbatches);
    int forward = 0;
    for (; forward < warmup; ++forward) program.push_back(CellOp(Op::F, rank, forward));
    for (int backward = 0; backward < spec.microbatches; ++backward) {
      if (forward < spec.microbatches) program.push_back(CellOp(Op::F, rank, forward++));
      program.push_back(CellOp(Op::BW, rank, backward));
    }
  }
  return plan;
}

}  // namespace

const Schedule kOneFOneB = {
    .name = "1f1b",
    .summary = "one forward and one full backward in turn",
    .limits = "any P and M",
    .memory = "P-r activations on rank r",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 1); },
    .frame = LinearPlan,
    .generate = GenerateOneFOneB,
    .peak_activations = [](const Spec& spec,
                           int rank) { return std::min(spec.ranks - rank, spec.microbatches); },
    .formula = &kFillFormula,
};

}  // namespace contraflow
