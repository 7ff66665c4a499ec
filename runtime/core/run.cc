#include "runtime/core/run.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "compiler/plan/error.h"
#include "runtime/core/walk.h"

namespace contraflow {

size_t DeviceNumber(const Plan& plan, Device device) {
  return static_cast<size_t>((device.replica * plan.expert_parallel + device.member) * plan.ranks +
                             device.rank);
}

size_t DeviceCount(const Plan& plan) { return DeviceNumber(plan, {plan.data_parallel, 0, 0}); }

std::vector<Device> AllDevices(const Plan& plan) {
  std::vector<Device> devices;
  for (int d = 0; d < static_cast<int>(DeviceCount(plan)); ++d) {
    const int group = d / plan.ranks;
    devices.push_back({group / plan.expert_parallel, group % plan.expert_parallel, d % plan.ranks});
  }
  return devices;
}

StepResult JoinDevices(const Plan& plan, std::span<const DeviceStep> devices, Time duration) {
  StepResult result;
  result.duration = duration;
  if (devices.empty()) return result;
  CF_ASSERT(devices.size() == DeviceCount(plan));
  result.timeline = {true, Unit::kMicroseconds, {}};
  for (int rank = 0; rank < plan.ranks; ++rank) {
    result.timeline.ranks.push_back(devices[static_cast<size_t>(rank)].spans);
  }
  std::map<std::string, double> squares;  // copies of a block have the same gradients
  for (const DeviceStep& device : devices) {
    result.dropped += device.dropped;
    squares.insert(device.squares.begin(), device.squares.end());
  }
  result.gradient_norm = NormOf(squares);
  const std::vector<int> route_of = RouteOfMicrobatch(plan);
  for (size_t place = 0; place < MicrobatchesOfStep(plan); ++place) {
    const int m = static_cast<int>(place) % plan.microbatches;
    const size_t group = place / static_cast<size_t>(plan.microbatches);
    const Route& route = plan.routes[static_cast<size_t>(route_of[static_cast<size_t>(m)])];
    const auto& here =
        devices[group * static_cast<size_t>(plan.ranks) + static_cast<size_t>(route.ranks.back())]
            .losses;
    const auto loss = std::ranges::find(here, m, &std::pair<int, float>::first);
    if (loss == here.end()) {
      throw Error("micro-batch " + std::to_string(m) +
                  " never reached the last stage; verify the plan");
    }
    result.losses.push_back(loss->second);
  }
  result.loss = std::accumulate(result.losses.begin(), result.losses.end(), 0.0) /
                static_cast<double>(result.losses.size());
  return result;
}

namespace {

/// Of every copy of a stage that the process has, stage by stage.
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

/// What of a copy is saved.
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

// Who asked for a stage once more would get it as the device has it.
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
