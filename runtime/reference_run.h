#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan.h"
#include "runtime/stage.h"
#include "runtime/text.h"

namespace contraflow {

/// The same training without a pipeline: one copy of every stage, one micro-batch after the other,
/// and for each its stages' F, then B, then W. What a plan's execution must equal, bit for bit. Of
/// the plan it uses only where stages live: gradients are summed in ascending micro-batch order for
/// each copy (replica and rank) of a stage, then over the copies, replica by replica in route
/// order.
class ReferenceRun {
 public:
  /// The plan is sound (Verify), the model fitted to its stages. Plan, model and text must outlive
  /// the run.
  ReferenceRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed);

  /// One step; steps count from 1. Returns the losses, [replica * microbatches + micro-batch].
  std::vector<float> Step(int step);

  /// With the gradients and the updated parameters of the last step.
  Stage& StageAt(int stage) { return stages_[static_cast<size_t>(stage)]; }

 private:
  float TrainOn(int step, int replica, int microbatch);
  /// Sum over micro-batches of a stage's gradients on the copy that this micro-batch belongs to.
  std::vector<float>& SumOfCopy(int stage, int replica, int microbatch);

  const Plan& plan_;
  const Model& model_;
  const Text& text_;
  const uint64_t seed_;
  const std::vector<int> route_of_;
  const std::vector<std::vector<int>> holders_;
  std::vector<Stage> stages_;
  std::vector<std::vector<std::vector<float>>> sums_;  // [stage][replica * holders + holder]
};

}  // namespace contraflow
