// V-Half (Qi et al., arXiv 2405.15362, section 3): a V-shaped pipeline with half the activations of
// 1F1B. In the block that repeats every 6 slots, F goes down one rank every two slots and comes up
// one rank a slot, and so does B:
//
//   slot     0 1 2 3 4 5 6 7 8 9 ...
//   rank 0   F                 F'          ' the stage on the way up
//   rank 1       F           F'
//   rank 2           F     F'
//   rank 3               F'F               (P = 4; then B' down and B up in the same manner)

#include <algorithm>

#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/published/v_shape.h"

namespace contraflow {
namespace {

Plan GenerateVHalf(const Spec& spec) {
  const int ranks = spec.ranks;
  // For an even P the passes would meet in the same slots, so backwards come three slots later.
  const int pause = ranks % 2 == 0 ? 3 : 0;
  std::vector<PassSlots> block;
  for (int rank = 0; rank < ranks; ++rank) {
    block.push_back({2 * rank, 3 * ranks - 2 - rank, 3 * ranks + pause - 1 + 2 * rank,
                     6 * ranks + pause - 2 - rank});
  }
  return BlockPlan(spec, block);
}

}  // namespace

const Schedule kVHalf = {
    .name = "v-half",
    .summary = "two stages per rank in a V, with half the activations of 1F1B",
    .limits = "any P and M",
    .memory = "P+2 (P even) or P+1 activations of half a rank each, on every rank",
    .stages = [](const Spec& spec) { return 2 * spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 2); },
    .frame = VPlan,
    .generate = GenerateVHalf,
    .peak_activations =
        [](const Spec& spec, int) {
          return std::min(2 * (spec.ranks / 2 + 1), 2 * spec.microbatches);
        },
    .formula = nullptr,
};

}  // namespace contraflow
