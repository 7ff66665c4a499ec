#include "tools/contraflow-run/check.h"

#include <utility>

#include "runtime/core/run.h"

namespace contraflow {

HostCheck::HostCheck(const RunInput& input, uint64_t seed, std::function<void()> moves)
    : input_(input), reference_(input.plan, input.model, input.dataset, seed) {
  reference_.OnMove(std::move(moves));
}

Comparison HostCheck::Compare(int step, const StepResult& result, Run& run) {
  return CompareStep(input_.plan, step, result, run, reference_);
}

std::vector<StateBlock> HostCheck::State() {
  std::vector<StateBlock> blocks;
  for (int s = 0; s < input_.plan.stages; ++s) {
    for (StateBlock& block : StateOf(reference_.StageAt(s))) blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace contraflow
