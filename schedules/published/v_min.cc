// V-Min (Qi et al., arXiv 2405.15362, section 3): a V-shaped pipeline with a third of the
// activations of 1F1B, the least that a block of equal slots allows. In the block that repeats
// every 6 slots a micro-batch crosses all ranks down and up, twice, without ever waiting:
//
//   slot     0 1 2 3 4 5 6 7 8 9 ...
//   rank 0   F             F'B'            ' the stage on the way up
//   rank 1     F         F'    B'
//   rank 2       F     F'        B'
//   rank 3         F F'            B'B     (P = 4)

#include <algorithm>

#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/published/v_shape.h"

namespace contraflow {
namespace {

Plan GenerateVMin(const Spec& spec) {
  const int ranks = spec.ranks;
  // With P a multiple of 3 the passes would meet in the same slots, so backwards come two later.
  const int pause = ranks % 3 == 0 ? 2 : 0;
  std::vector<PassSlots> block;
  for (int rank = 0; rank < ranks; ++rank) {
    block.push_back(
        {rank, 2 * ranks - 1 - rank, 2 * ranks + pause + rank, 4 * ranks + pause - 1 - rank});
  }
  return BlockPlan(spec, block);
}

}  // namespace

const Schedule kVMin = {
    .name = "v-min",
    .summary = "two stages per rank in a V, with a third of the activations of 1F1B",
    .limits = "any P and M",
    .memory = "2(P+4)/3, rounded down to even, activations of half a rank each",
    .stages = [](const Spec& spec) { return 2 * spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 2); },
    .frame = VPlan,
    .generate = GenerateVMin,
    .peak_activations =
        [](const Spec& spec, int) {
          return std::min(2 * ((spec.ranks + 4) / 3), 2 * spec.microbatches);
        },
    .formula = nullptr,
};

}  // namespace contraflow
