#pragma once

#include <cstddef>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

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

  /// Every stage of every micro-batch once. If all copies agree on an order, as a rule the
  /// ascending one, that is one pass for each micro-batch; otherwise some come again.
  const std::vector<Pass>& passes() const { return passes_; }
  /// How many sums over micro-batches there are of a stage's gradients, and which of them one is
  /// added to: one for each copy in each of `groups`. For parameters that all members of an expert
  /// group have, each replica and member is a group; for experts, each replica.
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
