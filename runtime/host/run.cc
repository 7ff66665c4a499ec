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

/// The state that is saved, on the host or, with `in_place`, where it is.
std::vector<StateBlock> Saved(const Plan& plan, Run& run, bool in_place) {
  std::vector<StateBlock> saved;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    if (!first || device.replica > 0) return;
    StageHolder& holder = run.At(device);
    StageState state = in_place ? holder.StateAt(s) : holder.StageHolder::StateAt(s);
    const size_t begin = device.member == 0 ? 0 : state.dense;
    std::move(state.blocks.begin() + static_cast<ptrdiff_t>(begin), state.blocks.end(),
              std::back_inserter(saved));
  });
  return saved;
}

}  // namespace

std::vector<StateBlock> SavedState(const Plan& plan, Run& run) { return Saved(plan, run, false); }
std::vector<StateBlock> StateToSave(const Plan& plan, Run& run) { return Saved(plan, run, true); }

std::vector<StateBlock> WholeState(const Plan& plan, Run& run) {
  std::vector<StateBlock> all;
  for (const StageCopy& copy : CopiesOf(plan, run)) {
    std::ranges::move(StateOf(*copy.held), std::back_inserter(all));
  }
  return all;
}

// A second request for a stage would return the state that the device has now.
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
