// ZB-1P, also ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B with the backward split. Rank r runs r
// input gradients ahead of their weight gradients, so that W fills what 1F1B leaves empty at the
// end, and every rank holds P activations.
//
//   rank 0   F0 F1 F2          B0 W0 F3 B1 W1    B2 W2    B3 W3
//   rank 1      F0 F1     B0 F2 B1 W0 F3 B2 W1    B3 W2 W3
//   rank 2         F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
//
// This is the hand-made order; at unit cost the authors' heuristic gives the same one.

#include <algorithm>

#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

Plan GenerateZb1p(const Spec& spec) { return HandMadeZeroBubble(spec, 1); }

Time Zb1pFormula(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks - 1) * (c.f + c.full_b - 2 * c.w);
}

// The published formula assumes W <= min(F, B of this project); with a longer W it is too small.
std::vector<Time> Zb1pBubbles(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  if (!HasClosedForm(spec) || spec.microbatches < spec.ranks) return {};
  const Time bubble = (spec.ranks - 1) * std::max({c.f + c.b - c.w, c.f, c.b});
  return OnEachRank(spec, bubble);
}

constexpr Formula kZb1pFormula = {"(PP-1)(F+B-2W)", Zb1pFormula, Zb1pBubbles};

}  // namespace

Plan HandMadeZeroBubble(const Spec& spec, int ahead) {
  CF_ASSERT(ahead == 1 || ahead == 2);
  Plan plan = LinearPlan(spec);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.program(rank);
    const int warmup = std::min(ahead * (spec.ranks - 1 - rank), spec.microbatches);
    int forward = 0, weight = 0;
    for (; forward < warmup; ++forward) program.push_back(CellOp(Op::F, rank, forward));
    for (int backward = 0; backward < spec.microbatches; ++backward) {
      if (forward < spec.microbatches) program.push_back(CellOp(Op::F, rank, forward++));
      program.push_back(CellOp(Op::B, rank, backward));
      if (backward >= ahead * rank) program.push_back(CellOp(Op::W, rank, weight++));
    }
    while (weight < spec.microbatches) program.push_back(CellOp(Op::W, rank, weight++));
  }
  return plan;
}

const Schedule kZb1p = {
    .name = "zb-1p",
    .summary = "1F1B with the weight gradients delayed into the bubbles",
    .limits = "any P and M",
    .memory = "P activations on every rank, held until W",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 1); },
    .frame = LinearPlan,
    .generate = GenerateZb1p,
    .peak_activations = [](const Spec& spec,
                           int) { return std::min(spec.ranks, spec.microbatches); },
    .formula = &kZb1pFormula,
};

}  // namespace contraflow
