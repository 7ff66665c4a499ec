#include "runtime/core/walk.h"

#include <algorithm>
#include <string>
#include <utility>

namespace contraflow {
ComponentWalk::ComponentWalk(const Plan& plan, std::vector<int> layers, const std::string& model)
    : layers_(std::move(layers)), accesses_(plan, layers_) {
  const RecomputedCells recomputed(plan);
  for (int s = 0; s < plan.stages; ++s) {
    if (recomputed.extent(s).layers <= LayersOf(s)) continue;
    throw Error("the plan recomputes " + ToString(recomputed.extent(s)) + " of stage " +
                std::to_string(s) + ", which has " + std::to_string(LayersOf(s)) + " in model \"" +
                model + "\"; compile it with `recompute` layers=" + std::to_string(LayersOf(s)) +
                " or less, or full");
  }
}

}  // namespace contraflow
