#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compiler/plan/access.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "runtime/model/model.h"

namespace contraflow {

/// The share of one micro-batch of one device in the loss of a step.
float LossScale(const Plan& plan);

/// How many micro-batches a step has over all replicas and members, and the place of one among
/// them, and of its loss: [replica][member][micro-batch].
size_t MicrobatchesOfStep(const Plan& plan);
size_t MicrobatchPlace(const Plan& plan, int replica, int member, int microbatch);

/// The stages that a rank holds a copy of, ascending.
std::vector<int> StagesOf(const Plan& plan, int rank);

/// What the instructions of a plan come down to: the components of its chunks, where it has chunks,
/// and the values that components and messages touch, layer by layer.
class ComponentWalk {
 public:
  /// The model is fitted to the plan, which must outlive this.
  ComponentWalk(const Plan& plan, const Model& model);
  /// Of opaque stages: a chunk is one component.
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

  // By stage; those of a plan of chunks need not be equally many. Empty: opaque stages.
  const std::vector<int> layers_;
  const Accesses accesses_;
};

/// What a value is to the layer of a component, to the chunk, or to the message, that touches it:
/// what is handed to a neighbouring layer, that one's input or output gradient, is this one's
/// output or input gradient.
inline Value SeenFrom(const Instruction& i, const Access& access) {
  const bool input = access.value == Value::input;
  if (IsMessage(i.op) || !(input || access.value == Value::doutput)) return access.value;
  if (access.stage == (input ? i.stage : BackStage(i)) && access.layer == i.layer) {
    return access.value;
  }
  return input ? Value::output : Value::dinput;
}

/// How a run without a pipeline takes the micro-batches of a plan: one after the other, so that the
/// weight gradients of every copy of a stage (a rank that holds it) are added up in the order of
/// that rank's program. With a sound plan (Verify) all components of a stage say the same.
class SerialOrder {
 public:
  /// One forward and backward of a micro-batch, and the stages that add its weight gradients then.
  struct Pass {
    int microbatch = 0;
    bool again = false;       ///< it was computed before, for other stages
    std::vector<int> stages;  ///< ascending
  };

  /// The plan must outlive this.
  explicit SerialOrder(const Plan& plan);

  /// Every stage of every micro-batch once. Where all copies agree on an order, as a rule the
  /// ascending one, that is one pass for each micro-batch; otherwise some come again.
  const std::vector<Pass>& passes() const { return passes_; }
  /// How many sums over micro-batches there are of a stage's gradients, and which of them one is
  /// added to: one for each copy in each of `groups`. Of what all members of an expert group have,
  /// each replica and member is a group; of the experts, each replica.
  size_t Sums(int stage, int groups) const {
    return static_cast<size_t>(groups) * holders_[static_cast<size_t>(stage)].size();
  }
  size_t SumOf(int stage, int group, int microbatch) const {
    return Sums(stage, group) + CopyOf(stage, microbatch);
  }

 private:
  size_t CopyOf(int stage, int microbatch) const;

  const Plan& plan_;
  const std::vector<std::vector<int>> holders_;
  const std::vector<int> route_of_;
  std::vector<Pass> passes_;
};

}  // namespace contraflow
