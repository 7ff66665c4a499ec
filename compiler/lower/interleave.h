#pragma once

#include <cstddef>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Which chains an interleaving joins.
struct Chains {
  bool forward = false;   ///< ATTN_F DISPATCH_F MLP_F COMBINE_F of each layer
  bool backward = false;  ///< COMBINE_B MLP_B DISPATCH_B ATTN_B of each layer, last layer first
  bool weights = false;   ///< MLP_W and ATTN_W of each layer, after their MLP_B and ATTN_B

  auto operator<=>(const Chains&) const = default;
};

/// The components of a chunk or of an F&B pair on two lanes, compute and all-to-all.
struct Interleaving {
  Time makespan = 0;
  /// Issue order over both lanes (each lane runs its part in this order). stage is 0, microbatch 0
  /// for the forward and 1 for the backward chunk; layers are numbered in data-flow order.
  std::vector<Instruction> order;
  std::vector<Span> spans;  ///< of `order`, earliest start
};

/// The interleaving with the least makespan, exactly, for any costs: partial orders best first,
/// without those that another one covers. Deterministic among equally good ones; for costs like
/// DeepSeek's, DeepSeek's (arXiv 2412.19437, section 3.2.1). The forward chain has the costs
/// `forward`, the others `backward` (they differ where micro-batches do). Throws Error if more than
/// `most_orders` partial orders would have to be looked at: tens are enough for the costs of
/// published models, and hundreds of thousands too few for 16 random and all different layers. The
/// two may have unlike layers.
Interleaving Interleave(const MoeCost& forward, const MoeCost& backward, Chains chains,
                        size_t most_orders = size_t{1} << 17);

/// Like Interleave, but a good one where that would be too many partial orders: within about 1 % of
/// the best on rows of up to 20 layers.
Interleaving InterleaveSoon(const MoeCost& forward, const MoeCost& backward, Chains chains);

/// Sets costs.stages (f, b, w, bw, fb) from costs.moe: f and b are the chains, w its compute, bw
/// the backward chain with its weight parts in the gaps (kAll) or after it (kPublished), fb the
/// best pair. Keeps reduce and step of stages that were given. The component costs must be sound
/// (FlawOf). With `soon`, what InterleaveSoon finds in place of the best.
void DeriveChunkCosts(CostModel* costs, Overlap overlap, bool soon = false);

}  // namespace contraflow
