// DualPipe (DeepSeek-V3 technical report, arXiv 2412.19437, figure 5; github deepseek-ai/DualPipe):
// micro-batches enter from both ends of the pipeline, each rank holds stage r of the one direction
// and stage P-1-r of the other, and in the steady state every forward is overlapped with a backward
// of the opposite direction. Ranks r and P-1-r run mirror images of each other.
//
//   rank 0   F0 F1 F2 F4' BW..            stream 0 enters at rank 0 (micro-batches 0..M/2-1),
//   ...                                   stream 1 at rank P-1 (M/2..M-1)
//
// The phases are in bidirectional.cc.

#include <algorithm>

#include "schedules/published/bidirectional.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

std::string RejectDualPipe(const Spec& spec) {
  if (spec.ranks % 2 != 0) {
    return "needs an even number of ranks, has " + std::to_string(spec.ranks) + "; " +
           (spec.ranks > 1 ? "use " + std::to_string(spec.ranks - 1) + " or " : "use ") +
           std::to_string(spec.ranks + 1) + ", or dualpipe-v, which takes any";
  }
  if (spec.microbatches % 2 != 0) {
    return "needs an even number of micro-batches (half enter from each end), has " +
           std::to_string(spec.microbatches) + "; use " +
           std::to_string(std::max(spec.microbatches + 1, 2 * spec.ranks));
  }
  if (spec.microbatches < 2 * spec.ranks) {
    return "needs at least 2*P = " + std::to_string(2 * spec.ranks) + " micro-batches, has " +
           std::to_string(spec.microbatches);
  }
  return RejectChunks(spec, 1);
}

/// Distance of a rank from its end of the pipeline.
int FromEnd(int ranks, int rank) { return std::min(rank, ranks - 1 - rank); }

Plan GenerateDualPipe(const Spec& spec) {
  Plan plan = BidirectionalPlan(spec);
  const int ranks = spec.ranks, half = spec.microbatches / 2;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool mirrored = rank >= ranks / 2;
    const int down = rank, up = ranks - 1 - rank;
    const int h = FromEnd(ranks, rank);
    plan.program(rank) = BidirectionalProgram({
        .stage = {mirrored ? up : down, mirrored ? down : up},
        .first = {mirrored ? half : 0, mirrored ? 0 : half},
        .ahead = ranks / 2 - 1 - h,
        .from_end = h,
        .pairs = half - ranks + h + 1,
        .middle = h == ranks / 2 - 1,
    });
  }
  return plan;
}

Time DualPipeFormula(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks / 2 - 1) * (c.fb + c.full_b - 3 * c.w);
}

std::vector<Time> DualPipeBubbles(const Spec& spec) {
  if (!HasClosedForm(spec)) return {};
  std::vector<int> from_end;
  for (int rank = 0; rank < spec.ranks; ++rank) from_end.push_back(FromEnd(spec.ranks, rank));
  return BidirectionalBubble(spec.costs.stage(0), spec.ranks / 2 - 1, from_end);
}

constexpr Formula kDualPipeFormula = {"(PP/2-1)(F&B+B-3W)", DualPipeFormula, DualPipeBubbles};

}  // namespace

const Schedule kDualPipe = {
    .name = "dualpipe",
    .summary = "micro-batches from both ends, forwards overlapped with backwards; parameters twice",
    .limits = "P even, M even, M >= 2P",
    .memory = "P+1 activations on every rank",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = RejectDualPipe,
    .frame = BidirectionalPlan,
    .generate = GenerateDualPipe,
    .peak_activations = [](const Spec& spec, int) { return spec.ranks + 1; },
    .formula = &kDualPipeFormula,
};

}  // namespace contraflow
