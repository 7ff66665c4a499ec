#include "runtime/footprint.h"

#include <algorithm>

#include "runtime/parameters.h"
#include "runtime/views.h"

namespace contraflow {

MemoryCost FootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitModel(model, stages, layers, expert_parallel);
  const LayerRange largest = LayersOfStage(fitted, 0, stages);
  const int64_t held = largest.last - largest.first;
  const int owned = fitted.experts / expert_parallel;
  const ValueBytes values = BytesOfValues<float>(LayerShape(fitted, expert_parallel, owned));

  MemoryCost memory;
  memory.values.assign(values.begin(), values.end());
  for (const Value value : kActivationOfLayer) {
    const int64_t bytes = held * values[static_cast<size_t>(value)];
    memory.activation_bytes += bytes;
    if (ArenaOf(value) == Arena::kStash) memory.w_stash_bytes += bytes;
  }
  for (int s = 0; s < stages; ++s) {
    const size_t size = LayoutOfStage(fitted, s, stages, {0, owned}).size;
    const auto bytes = static_cast<int64_t>(size * sizeof(float));
    memory.parameter_bytes.push_back(bytes);
    memory.gradient_bytes.push_back(bytes);
    memory.optimizer_bytes.push_back(2 * bytes);
  }
  return memory;
}

}  // namespace contraflow
