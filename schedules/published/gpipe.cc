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

Plan Generate(const Spec& spec) {
  Plan plan = SingleRoutePlan(spec, LinearPlacement(spec.ranks));
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.program(rank);
    for (int m = 0; m < spec.microbatches; ++m) program.push_back(CellOp(Op::F, rank, m));
    for (int m = 0; m < spec.microbatches; ++m) program.push_back(CellOp(Op::BW, rank, m));
  }
  return plan;
}

Time Published(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks - 1) * (c.f + c.full_b);
}

// Both waves cross the pipeline without a stall, so the fill is all the bubble there is, for any M.
std::vector<Time> Exact(const Spec& spec) {
  if (!HasClosedForm(spec)) return {};
  return std::vector<Time>(static_cast<size_t>(spec.ranks), Published(spec));
}

constexpr Formula kFormula = {"(PP-1)(F+B)", Published, Exact};

}  // namespace

const Schedule kGpipe = {
    .name = "gpipe",
    .summary = "all forwards, then all backwards",
    .limits = "any P and M",
    .memory = "M activations",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 1); },
    .generate = Generate,
    .peak_activations = [](const Spec& spec, int) { return spec.microbatches; },
    .formula = &kFormula,
};

}  // namespace contraflow
