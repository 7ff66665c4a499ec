#pragma once

#include <map>
#include <memory>
#include <vector>

#include "compiler/plan/access.h"
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
  /// The model is fitted to the plan. Neither is needed any more behind this.
  ComponentWalk(const Plan& plan, const Model& model);

  /// Calls visit(component) for all that a compute instruction of the plan does, in the order in
  /// which it is done: the forward, the backward, the weight gradients, or the component that it
  /// is.
  template <typename Visit>
  void Each(const Instruction& i, Visit visit) const {
    if (OperandsOf(i.op) == Operands::kLayer) return visit(i);
    if (i.op == Op::R) {
      for (int layer = 0; layer < LayersOf(i.stage); ++layer) {
        for (const Op op : {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R}) {
          visit(Component(op, i.stage, layer, i.microbatch));
        }
      }
      return;
    }
    if (HasForward(i.op)) {
      for (int layer = 0; layer < LayersOf(i.stage); ++layer) {
        for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
          visit(Component(op, i.stage, layer, i.microbatch));
        }
      }
    }
    const int stage = BackStage(i), microbatch = BackMicrobatch(i);
    if (HasBackward(i.op)) {
      for (int layer = LayersOf(stage); layer-- > 0;) {
        for (const Op op : {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B}) {
          visit(Component(op, stage, layer, microbatch));
        }
      }
    }
    if (HasWeight(i.op)) {
      for (int layer = LayersOf(stage); layer-- > 0;) {
        for (const Op op : {Op::MLP_W, Op::ATTN_W}) visit(Component(op, stage, layer, microbatch));
      }
    }
  }

  /// The values that a component or message touches (Accesses::Of).
  void AccessesOf(const Instruction& i, std::vector<Access>* accesses) const;

  int LayersOf(int stage) const { return layers_[static_cast<size_t>(stage)]; }

 private:
  /// A plan whose stages all have so many layers.
  struct Even {
    Even(const Plan& like, int layers);
    Plan plan;
    Accesses accesses;
  };

  std::vector<int> layers_;  // by stage
  // By number of layers: stages of a plan of chunks need not have equally many.
  std::map<int, std::unique_ptr<const Even>> even_;
};

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

  explicit SerialOrder(const Plan& plan);

  /// Every stage of every micro-batch once. Where all copies agree on an order, ascending for all
  /// that this library makes, that is one pass for each micro-batch; otherwise some come again.
  const std::vector<Pass>& passes() const { return passes_; }
  /// How many sums over micro-batches there are of a stage's gradients: of what all members of an
  /// expert group have, [replica][member][copy]; of the experts, which only one has,
  /// [replica][copy].
  size_t DenseSums(int stage) const { return ExpertSums(stage) * members_; }
  size_t ExpertSums(int stage) const { return replicas_ * CopiesOf(stage); }
  /// Which of them a micro-batch is added to.
  size_t DenseSumOf(int stage, int replica, int member, int microbatch) const;
  size_t ExpertSumOf(int stage, int replica, int microbatch) const;

 private:
  /// Copies of a stage in a replica.
  size_t CopiesOf(int stage) const { return holders_[static_cast<size_t>(stage)].size(); }
  /// Which of them, in the order of HoldersOfStage, works on a micro-batch.
  size_t CopyOf(int stage, int microbatch) const;

  const size_t replicas_, members_;
  const std::vector<std::vector<int>> holders_;
  std::vector<std::vector<size_t>> copy_of_;  // by stage and route
  const std::vector<int> route_of_;
  std::vector<Pass> passes_;
};

}  // namespace contraflow
