#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/access.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// Components of the chunks of a plan, where it has chunks, and the values that components and
/// messages touch, layer by layer.
class ComponentWalk {
 public:
  /// For the stages of a model that have this many layers each (LayersOfStages); the plan must
  /// outlive this. `model` is its name, for messages. Throws Error if the plan recomputes more
  /// layers.
  ComponentWalk(const Plan& plan, std::vector<int> layers, const std::string& model)
      : layers_(std::move(layers)), accesses_(plan, layers_) {
    const RecomputedCells recomputed(plan);
    for (int s = 0; s < plan.stages; ++s) {
      const RecomputeExtent extent = recomputed.extent(s);
      if (extent.layers <= LayersOf(s)) continue;
      const std::string layers_of = std::to_string(LayersOf(s));
      throw Error("the plan recomputes " + ToString(extent) + " of stage " + std::to_string(s) +
                  ", which has " + layers_of + " in model \"" + model +
                  "\"; compile it with `recompute` layers=" + layers_of + " or less, or full");
    }
  }
  /// For opaque stages: a chunk is one component.
  explicit ComponentWalk(const Plan& plan) : accesses_(plan) {}

  /// Calls visit(component) for all that a compute instruction of the plan does, in the order in
  /// which it is done: the forward, the backward, the weight gradients, or the component that it
  /// is.
  template <typename Visit>
  void Each(const Instruction& i, Visit visit) const {
    if (OperandsOf(i.op) == Operands::kLayer || layers_.empty()) return visit(i);
    constexpr Op kForward[] = {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F},
                 kAgain[] = {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R},
                 kBackward[] = {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B},
                 kWeight[] = {Op::MLP_W, Op::ATTN_W};
    const auto layer = [&](std::span<const Op> ops, int stage, int l, int microbatch) {
      for (const Op op : ops) {
        if (IsRecompute(op) && !ExtentOf(i).Has(op, l, LayerKind::kMoe)) continue;
        visit(Component(op, stage, l, microbatch));
      }
    };
    const int forward = HasForward(i.op) || i.op == Op::R ? LayersOf(i.stage) : 0;
    for (int l = 0; l < forward; ++l) {
      layer(i.op == Op::R ? kAgain : kForward, i.stage, l, i.microbatch);
    }
    const int stage = BackStage(i), microbatch = BackMicrobatch(i);
    for (int l = LayersOf(stage); HasBackward(i.op) && l-- > 0;) {
      layer(kBackward, stage, l, microbatch);
    }
    for (int l = LayersOf(stage); HasWeight(i.op) && l-- > 0;) layer(kWeight, stage, l, microbatch);
  }

  /// The values that a component or message touches (Accesses::Of).
  void AccessesOf(const Instruction& i, std::vector<Access>* accesses) const {
    accesses_.Of(i, accesses);
  }

 private:
  int LayersOf(int stage) const { return layers_[static_cast<size_t>(stage)]; }

  // Layers by stage; those of a plan of chunks need not be equally many. Empty: opaque stages.
  const std::vector<int> layers_;
  const Accesses accesses_;
};

/// Role of a value for the layer of a component, for the chunk, or for the message, that touches
/// it: the input or output gradient of a neighbouring layer is this one's output or input gradient.
inline Value SeenFrom(const Instruction& i, const Access& access) {
  const bool input = access.value == Value::input;
  if (IsMessage(i.op) || !(input || access.value == Value::doutput)) return access.value;
  if (access.stage == (input ? i.stage : BackStage(i)) && access.layer == i.layer) {
    return access.value;
  }
  return input ? Value::output : Value::dinput;
}

}  // namespace contraflow
