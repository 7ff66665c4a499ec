#include "runtime/model/footprint.h"

#include <algorithm>

#include "runtime/model/parameters.h"
#include "runtime/model/views.h"

namespace contraflow {

MemoryCost FootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitModel(model, stages, layers, expert_parallel);
  const LayerShape shape(fitted, expert_parallel, fitted.experts / expert_parallel);
  return FootprintWith(fitted, stages, expert_parallel, BytesOfValues<float>(shape),
                       {sizeof(float), sizeof(float), 2 * sizeof(float)});
}

MemoryCost FootprintWith(const Model& fitted, int stages, int expert_parallel,
                         const ValueBytes& values, ParameterBytes each) {
  const LayerRange largest = LayersOfStage(fitted, 0, stages);
  const int64_t held = largest.last - largest.first;
  const int owned = fitted.experts / expert_parallel;

  MemoryCost memory;
  memory.values.assign(values.begin(), values.end());
  for (const Value value : kActivationOfLayer) {
    const int64_t bytes = held * values[static_cast<size_t>(value)];
    memory.activation_bytes += bytes;
    if (ArenaOf(value) == Arena::kStash) memory.w_stash_bytes += bytes;
  }
  for (int s = 0; s < stages; ++s) {
    const auto size = static_cast<int64_t>(LayoutOfStage(fitted, s, stages, {0, owned}).size);
    memory.parameter_bytes.push_back(size * each.weights);
    memory.gradient_bytes.push_back(size * each.gradients);
    memory.optimizer_bytes.push_back(size * each.optimizer);
  }
  return memory;
}

}  // namespace contraflow
