#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "compiler/plan/cost.h"
#include "tools/planner/configuration.h"

namespace contraflow {

/// Figures of a configuration that need no schedule.
struct Estimate {
  Time bound = 0;         ///< no plan has a shorter step
  Time guess = 0;         ///< of a step; says which configurations to search first
  Time exposed = 0;       ///< the same if no all-to-all is hidden
  int64_t fixed = 0;      ///< bytes of parameters and their states on the average rank
  int64_t one_batch = 0;  ///< bytes of one micro-batch's activations on the average rank

  /// True if the activations of 1F1B, `times` as large, are likely to be over the memory.
  bool Tight(const Configuration& configuration, int64_t memory, double times = 1) const;
};

/// Costs of the configurations of a request, each made once.
class PlannerCosts {
 public:
  explicit PlannerCosts(const PlanRequest& request) : request_(request) {}

  /// Text of the cost file that `costs init` would write.
  std::string TextOf(const Configuration& configuration) const;
  /// Like TextOf, as a cost model, with the memory of the request's GPU.
  const CostModel& Of(const Configuration& configuration);
  Estimate EstimateOf(const Configuration& configuration);

 private:
  const PlanRequest& request_;
  /// Keys are tp, cp, ep, etp, micro-batch, and 1 where a node holds all copies of a stage.
  std::map<std::array<int, 6>, CostModel> made_;
};

/// FLOPs of a step of the model, forward and backward, nothing made again.
double ModelFlops(const PlanRequest& request);

}  // namespace contraflow
