// Chimera (Li and Hoefler, arXiv 2107.06925): two 1F1B pipelines in opposite directions over the
// same ranks, each for half of the micro-batches. Rank r holds stage r of the one and stage P-1-r
// of the other.
//
// Picture F and BW as slots of equal length. In the downward pipeline micro-batch j runs F in slot
// r + 2j and BW in slot 2P-1-r + 2j of rank r, in the upward one with P-1-r in place of r. For P
// even and j < P/2 no two of these slots of a rank are the same: so P micro-batches, half of them
// from each end, fit into 2P slots of a rank and leave P-2 free. The units follow each other every
// 2P slots (the paper's direct concatenation) and fill each other's free slots, but for P-2.
//
//   rank 0   F0    F1 F2 BW2 F3 BW3 BW0    BW1        P = 4, M = 4: micro-batches 0 1 down, 2 3 up
//   rank 1      F0 F2 F1 F3  BW2 BW0 BW3 BW1
//
// A rank runs its chunks in the order of their slots, whatever they cost.

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

std::string RejectChimera(const Spec& spec) {
  if (spec.ranks % 2 != 0) {
    return "needs an even number of ranks, has " + std::to_string(spec.ranks) + "; use " +
           (spec.ranks > 1 ? std::to_string(spec.ranks - 1) + " or " : "") +
           std::to_string(spec.ranks + 1);
  }
  if (spec.microbatches % 2 != 0) {
    return "needs an even number of micro-batches (half enter from each end), has " +
           std::to_string(spec.microbatches) + "; use " + std::to_string(spec.microbatches + 1);
  }
  return RejectChunks(spec, 1);
}

Plan GenerateChimera(const Spec& spec) {
  Plan plan = BidirectionalPlan(spec);
  const int ranks = spec.ranks, half = spec.microbatches / 2;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::pair<int64_t, Instruction>> slots;
    for (const bool down : {true, false}) {
      const int stage = down ? rank : ranks - 1 - rank;
      for (int m = 0; m < half; ++m) {
        const int64_t begin = int64_t{m / (ranks / 2)} * 2 * ranks + 2 * (m % (ranks / 2));
        const int microbatch = down ? m : half + m;
        slots.emplace_back(begin + stage, CellOp(Op::F, stage, microbatch));
        slots.emplace_back(begin + 2 * ranks - 1 - stage, CellOp(Op::BW, stage, microbatch));
      }
    }
    std::sort(slots.begin(), slots.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [slot, chunk] : slots) {
      plan.program(rank).push_back(chunk);
    }
  }
  return plan;
}

Time ChimeraFormula(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks / 2 - 1) * (c.f + c.full_b);
}

// The slots are equal, F and BW need not be. Then each unit idles once more in its middle and once
// where it meets the next, for as long as the two differ. Known for whole units only.
std::vector<Time> ChimeraBubbles(const Spec& spec) {
  if (!HasClosedForm(spec) || spec.microbatches % spec.ranks != 0) return {};
  const FormulaCosts c = LettersOf(spec);
  const Time units = spec.microbatches / spec.ranks;
  const Time uneven = (2 * units - 1) * std::max(c.f - c.full_b, c.full_b - c.f);
  const Time bubble = (spec.ranks / 2 - 1) * (c.f + c.full_b + uneven);
  return OnEachRank(spec, bubble);
}

int ChimeraPeak(const Spec& spec, int rank) {
  const int behind = std::min(rank, spec.ranks - 1 - rank);
  return std::min(spec.microbatches, spec.ranks / 2 + 1 + behind);
}

// Ratio (D-2)/(2N+D-2) in the paper, which is this bubble over N(F+B) and itself.
constexpr Formula kChimeraFormula = {"(PP/2-1)(F+B)", ChimeraFormula, ChimeraBubbles};

}  // namespace

const Schedule kChimera = {
    .name = "chimera",
    .summary = "two 1F1B pipelines in opposite directions; parameters twice",
    .limits = "P even, M even",
    .memory = "P/2+1 activations on the outer ranks, to P on the middle ones",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = RejectChimera,
    .frame = BidirectionalPlan,
    .generate = GenerateChimera,
    .peak_activations = ChimeraPeak,
    .formula = &kChimeraFormula,
};

}  // namespace contraflow
