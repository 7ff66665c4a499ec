// GPipe (Huang et al., arXiv 1811.06965): all forwards, then all full backwards.
//
//   rank 0   F0 F1 F2 F3                   BW0 BW1 BW2 BW3
//   rank 1      F0 F1 F2 F3            BW0 BW1 BW2 BW3
//   rank 2         F0 F1 F2 F3     BW0 BW1 BW2 BW3
//
// Simple, and every rank holds all M activations. Backwards run in ascending micro-batch order, so
// that gradients are summed in the same order as by every other schedule.

#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

Plan GenerateGpipe(const Spec& spec) {
  Plan plan = LinearPlan(spec);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.program(rank);
    for (int m = 0; m < spec.microbatches; ++m) program.push_back(CellOp(Op::F, rank, m));
    for (int m = 0; m < spec.microbatches; ++m) program.push_back(CellOp(Op::BW, rank, m));
  }
  return plan;
}

}  // namespace

const Schedule kGpipe = {
    .name = "gpipe",
    .summary = "all forwards, then all backwards",
    .limits = "any P and M",
    .memory = "M activations",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 1); },
    .frame = LinearPlan,
    .generate = GenerateGpipe,
    .peak_activations = [](const Spec& spec, int) { return spec.microbatches; },
    // Both waves cross the pipeline without a stall, so the fill is all the bubble there is.
    .formula = &kFillFormula,
};

}  // namespace contraflow
