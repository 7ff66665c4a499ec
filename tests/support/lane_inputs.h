#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Needs and results of one instruction, as numbers of facts of its rank: that a component, message
/// or chunk part has ended.
struct LaneInputs {
  std::string wrong;           ///< why it may never begin; else ""
  std::vector<size_t> needs;   ///< all must hold when it begins
  std::vector<size_t> makes;   ///< all hold when it ends, and none did before
  int sum = -1;                ///< of W: to which sum of its rank it adds its micro-batch
  bool takes_weights = false;  ///< the weight gradients of its stage must be whole
};

/// The weight gradients of a rank's copy of a stage.
struct LaneWeights {
  std::vector<int> microbatches;  ///< those of its routes, ascending
  std::vector<size_t> sums;       ///< one for each component with weights, in one order all
  std::vector<size_t> facts;      ///< that all of them have ended
  size_t step = 0;                ///< the fact that the optimizer has stepped
};

/// The same of all instructions of a rank.
struct RankInputs {
  std::vector<LaneInputs> instructions;
  std::vector<LaneWeights> stages;  ///< of every stage; no micro-batches where there is no copy
  size_t facts = 0, sums = 0;       ///< how many there are
};

/// For each rank of a plan of the right shape; the rules are written down once more, apart from
/// Verify's and Simulate's.
std::vector<RankInputs> InputsInLanes(const Plan& plan);

}  // namespace contraflow
