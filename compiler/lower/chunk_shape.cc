#include <algorithm>
#include <cmath>
#include <utility>

#include "compiler/lower/sharing.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

int ChainOf(Op op) {
  if (op == Op::MLP_W || op == Op::ATTN_W) return 2;
  return IsForwardComponent(op) ? 0 : 1;
}

/// The component of R that repeats this one of a forward.
Op RecomputeOf(Op op) {
  for (const Op recompute : {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R}) {
    if (Repeated(recompute) == op) return recompute;
  }
  CF_ASSERT(false && "not a component of a forward");
  return op;
}

/// Makes of the shape of a forward of such layers that of this much of it, run again.
void AddRecompute(const RecomputeExtent& extent, const MoeCost& layers, ChunkShape* shape) {
  std::vector<ChunkPart>& chain = shape->chains[0];
  for (ChunkPart& component : chain) component.op = RecomputeOf(component.op);
  std::erase_if(chain, [&](const ChunkPart& component) {
    return !extent.Has(component.op, component.layer, layers.KindOf(component.layer));
  });
  for (auto& lane : shape->order) lane.clear();
  for (size_t k = 0; k < chain.size(); ++k) shape->order[chain[k].lane].push_back({0, k});
}

/// Puts an interleaving's components after what the shape has.
void Append(const Interleaving& part, ChunkShape* shape) {
  for (size_t i = 0; i < part.order.size(); ++i) {
    const Instruction& component = part.order[i];
    const int chain = ChainOf(component.op);
    const int lane = WorkOf(component.op) == Work::kAllToAll ? 1 : 0;
    shape->order[lane].push_back({chain, shape->chains[chain].size()});
    shape->chains[chain].push_back(
        {component.op, component.layer, lane, part.spans[i].end - part.spans[i].start});
    if (chain != 2) continue;
    // After its own backward component, wherever that is; none in a chunk of weights alone.
    const Op own = component.op == Op::MLP_W ? Op::MLP_B : Op::ATTN_B;
    const std::vector<ChunkPart>& backward = shape->chains[1];
    const auto at = std::find_if(backward.begin(), backward.end(), [&](const ChunkPart& b) {
      return b.op == own && b.layer == component.layer;
    });
    shape->release.push_back(at == backward.end() ? 0
                                                  : static_cast<size_t>(at - backward.begin()) + 1);
  }
}

}  // namespace

ChunkShapes::ChunkShapes(const CostModel& costs, bool serial) : costs_(costs), serial_(serial) {
  const std::vector<MoeCost>& all = costs.stage_moe;
  for (size_t s = 0; s < all.size(); ++s) {
    const auto alike = std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(s), all[s]);
    first_alike_.push_back(static_cast<int>(alike - all.begin()));
  }
}

MoeCost ChunkShapes::ScaledFor(int stage, int microbatch) const {
  MoeCost scaled = costs_.moe_of(stage);
  if (microbatch < 0 || costs_.microbatch_scale.empty()) return scaled;
  for (const ComponentCost& component : kComponentCosts) {
    std::vector<Time>& times = scaled.*component.times;
    times.clear();
    for (int layer = 0; layer < scaled.layers_per_stage; ++layer) {
      times.push_back(costs_.Duration(Component(component.op, stage, layer, microbatch)));
    }
  }
  return scaled;
}

const ChunkShape& ChunkShapes::Of(const Instruction& chunk) {
  const bool recompute = chunk.op == Op::R;
  const Chains chains = {.forward = HasForward(chunk.op) || recompute,
                         .backward = HasBackward(chunk.op),
                         .weights = HasWeight(chunk.op)};
  const int back = chains.backward || chains.weights ? BackMicrobatch(chunk) : -1;
  const auto factor = [&](int microbatch) {
    return microbatch < 0 || costs_.microbatch_scale.empty()
               ? 1.0
               : costs_.microbatch_scale[static_cast<size_t>(microbatch)];
  };
  const int front = chains.forward ? chunk.microbatch : -1;
  const auto alike = [&](int stage) {
    return first_alike_.empty() ? 0 : first_alike_[static_cast<size_t>(stage)];
  };
  const auto [at, added] =
      shapes_.try_emplace({chains, recompute, ExtentOf(chunk), factor(front), factor(back),
                           alike(chunk.stage), alike(BackStage(chunk))});
  ChunkShape& shape = at->second;
  if (!added) return shape;
  const MoeCost forward = ScaledFor(chunk.stage, front),
                backward = ScaledFor(BackStage(chunk), back);
  // Unlike layers may be too many to look at all of their orders.
  const auto interleave = [&](Chains joined) {
    return costs_.moe ? Interleave(forward, backward, joined)
                      : InterleaveSoon(forward, backward, joined);
  };
  if (serial_ && !chains.forward && chains.backward && chains.weights) {
    Append(interleave({.backward = true}), &shape);
    Append(interleave({.weights = true}), &shape);
  } else {
    Append(interleave(chains), &shape);
  }
  if (recompute) AddRecompute(ExtentOf(chunk), forward, &shape);
  if (recompute && shape.chains[0].empty()) {
    throw Error("stage " + std::to_string(chunk.stage) + " has no components that `recompute` " +
                ToString(ExtentOf(chunk)) + " runs again; leave it out");
  }
  return shape;
}

}  // namespace contraflow
