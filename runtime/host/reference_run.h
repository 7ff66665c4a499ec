#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/host/whole_stage.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// The same training without a pipeline: one copy of every stage, with all of its experts, one
/// micro-batch after the other, and for each its stages' F, then B, then W. What a plan's execution
/// must equal, bit for bit. Of the plan it uses only where stages live: gradients are summed in
/// ascending micro-batch order for each copy of a stage (replica, member of the expert group and
/// rank; of an expert, which only one member has, replica and rank), then over the copies, replica
/// by replica, member by member and in route order.
class ReferenceRun {
 public:
  /// The plan is sound (Verify). Plan and text must outlive the run. Throws Error if the model does
  /// not fit the plan.
  ReferenceRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed);

  /// Called whenever a micro-batch is done, for who waits; may be empty.
  void OnMove(std::function<void()> moved) { moved_ = std::move(moved); }
  /// The experts that tokens of a micro-batch visit, [T x k], in place of those the router prefers:
  /// where the run to compare with computes in less precision, it decides what is nearly a tie.
  using Choices =
      std::function<const int32_t*(int stage, int layer, int replica, int member, int microbatch)>;
  /// From now on; may be empty.
  void ChooseBy(Choices choices) { choices_ = std::move(choices); }
  /// WholeStage::Strayed, the largest of the last step.
  double strayed() const { return strayed_; }
  /// One step; steps count from 1. Returns the losses, [replica][member][micro-batch].
  std::vector<float> Step(int step);

  /// With the gradients and the updated parameters of the last step.
  Stage& StageAt(int stage) { return stages_[static_cast<size_t>(stage)].stage(); }
  /// (token, expert) pairs of the last step that an expert had no capacity left for.
  int64_t dropped() const { return dropped_; }

 private:
  void TrainOn(int step, int replica, int microbatch, std::vector<float>* losses);
  size_t HolderOf(int stage, int microbatch) const;

  const Plan& plan_;
  const Model model_;
  const Text& text_;
  const uint64_t seed_;
  const std::vector<int> route_of_;
  const std::vector<std::vector<int>> holders_;
  std::vector<WholeStage<float>> stages_;
  // Sums over the micro-batches of a copy: [stage][(replica * members + member) * holders + holder]
  // and, for the experts, [stage][replica * holders + holder].
  std::vector<std::vector<std::vector<float>>> dense_, experts_;
  int64_t dropped_ = 0;
  double strayed_ = 0;
  std::function<void()> moved_;
  Choices choices_;
};

}  // namespace contraflow
