// DualPipeV ("cut in half", github deepseek-ai/DualPipe): DualPipe folded at the middle. One
// direction; each rank holds two stages, r on the way down and 2P-1-r on the way up, and the two
// legs of the V play the parts of DualPipe's two directions. Half the ranks of DualPipe, no second
// copy of the parameters.
//
// The phases are in bidirectional.cc.

#include "schedules/published/bidirectional.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

std::string RejectDualPipeV(const Spec& spec) {
  if (spec.microbatches < 2 * spec.ranks) {
    return "needs at least 2*P = " + std::to_string(2 * spec.ranks) + " micro-batches, has " +
           std::to_string(spec.microbatches);
  }
  return RejectChunks(spec, 2);
}

Plan GenerateDualPipeV(const Spec& spec) {
  Plan plan = VPlan(spec);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    plan.program(rank) = BidirectionalProgram(RankOfV(spec.ranks, spec.microbatches, rank));
  }
  return plan;
}

Time DualPipeVFormula(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks - 1) * (c.fb + c.full_b - 3 * c.w);
}

std::vector<Time> DualPipeVBubbles(const Spec& spec) {
  if (!HasClosedForm(spec)) return {};
  std::vector<int> from_end;
  for (int rank = 0; rank < spec.ranks; ++rank) from_end.push_back(rank);
  return BidirectionalBubble(spec.costs.stage(0), spec.ranks - 1, from_end);
}

constexpr Formula kDualPipeVFormula = {"(PP-1)(F&B+B-3W)", DualPipeVFormula, DualPipeVBubbles};

}  // namespace

const Schedule kDualPipeV = {
    .name = "dualpipe-v",
    .summary = "DualPipe folded into a V: two stages per rank, parameters once",
    .limits = "any P, M >= 2P",
    .memory = "2P+1 activations of half a rank each, on every rank",
    .stages = [](const Spec& spec) { return 2 * spec.ranks; },
    .reject = RejectDualPipeV,
    .frame = VPlan,
    .generate = GenerateDualPipeV,
    .peak_activations = [](const Spec& spec, int) { return 2 * spec.ranks + 1; },
    .formula = &kDualPipeVFormula,
};

}  // namespace contraflow
