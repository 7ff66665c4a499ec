#include "runtime/host/run.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "compiler/plan/error.h"

namespace contraflow {

namespace {

/// Visits every copy of a stage that the process has, stage by stage.
template <typename Visit>
void EachCopy(const Plan& plan, const Run& run, const Visit& visit) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
    for (const Device& device : run.devices()) {
      if (std::ranges::find(ranks, device.rank) == ranks.end()) continue;
      visit(s, device, device.rank == ranks.front());
    }
  }
}

}  // namespace

std::vector<StageCopy> CopiesOf(const Plan& plan, Run& run) {
  std::vector<StageCopy> copies;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    copies.push_back({s, device, first, &run.At(device).StageAt(s)});
  });
  return copies;
}

namespace {

/// Blocks of a copy that are saved.
void AddSaved(StageState state, Device device, std::vector<StateBlock>* saved) {
  const size_t begin = device.member == 0 ? 0 : state.dense;
  std::move(state.blocks.begin() + static_cast<ptrdiff_t>(begin), state.blocks.end(),
            std::back_inserter(*saved));
}

}  // namespace

std::vector<StateBlock> SavedState(const Plan& plan, Run& run) {
  std::vector<StateBlock> saved;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    StageHolder& holder = run.At(device);
    if (first && device.replica == 0) AddSaved(holder.StageHolder::StateAt(s), device, &saved);
  });
  return saved;
}

std::vector<StateBlock> StateToSave(const Plan& plan, Run& run) {
  std::vector<StateBlock> saved;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    if (first && device.replica == 0) AddSaved(run.At(device).StateAt(s), device, &saved);
  });
  return saved;
}

std::vector<StateBlock> WholeState(const Plan& plan, Run& run) {
  std::vector<StateBlock> all;
  for (const StageCopy& copy : CopiesOf(plan, run)) {
    std::ranges::move(StateOf(*copy.held), std::back_inserter(all));
  }
  return all;
}

// A caller who asked for a stage once more would get it as the device has it.
void PutState(const Plan& plan, Run& run) {
  EachCopy(plan, run, [&](int s, Device device, bool) { run.At(device).Put(s); });
}

std::map<std::string, Digest> ParameterDigests(const std::vector<StateBlock>& blocks) {
  std::map<std::string, Digest> digests;
  for (const StateBlock& block : blocks) {
    digests[block.name] = Sha256(std::as_bytes(block.parameters));
  }
  return digests;
}

double Validate(const Dataset& text, int batches, int step, Run& run) {
  double sum = 0;
  for (int batch = 1; batch <= batches + 1; ++batch) {
    const Dataset* const now = batch <= batches ? &text : nullptr;
    for (const Device& device : run.devices()) run.At(device).ReadText(now, batch);
    if (now != nullptr) sum += run.Step(step).loss;
  }
  return sum / batches;
}

}  // namespace contraflow
