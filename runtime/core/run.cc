#include "runtime/core/run.h"

#include <algorithm>
#include <span>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/host/stage.h"

namespace contraflow {

DeviceStep DeviceStepOf(const HostBackend& backend, const std::vector<Span>& spans) {
  return {{backend.losses().begin(), backend.losses().end()}, backend.dropped(), spans};
}

double MeanLoss(const std::vector<float>& losses) {
  double sum = 0;
  for (const float loss : losses) sum += static_cast<double>(loss);
  return losses.empty() ? 0 : sum / static_cast<double>(losses.size());
}

size_t DeviceNumber(const Plan& plan, Device device) {
  return static_cast<size_t>((device.replica * plan.expert_parallel + device.member) * plan.ranks +
                             device.rank);
}

size_t DeviceCount(const Plan& plan) {
  return static_cast<size_t>(plan.data_parallel) * static_cast<size_t>(plan.expert_parallel) *
         static_cast<size_t>(plan.ranks);
}

std::vector<Device> AllDevices(const Plan& plan) {
  std::vector<Device> devices;
  for (int replica = 0; replica < plan.data_parallel; ++replica) {
    for (int member = 0; member < plan.expert_parallel; ++member) {
      for (int rank = 0; rank < plan.ranks; ++rank) devices.push_back({replica, member, rank});
    }
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
  for (const DeviceStep& device : devices) result.dropped += device.dropped;
  const std::vector<int> route_of = RouteOfMicrobatch(plan);
  for (int replica = 0; replica < plan.data_parallel; ++replica) {
    for (int member = 0; member < plan.expert_parallel; ++member) {
      for (int m = 0; m < plan.microbatches; ++m) {
        const Route& route = plan.routes[static_cast<size_t>(route_of[static_cast<size_t>(m)])];
        const auto& here =
            devices[DeviceNumber(plan, {replica, member, route.ranks.back()})].losses;
        const auto loss = std::find_if(here.begin(), here.end(),
                                       [&](const auto& entry) { return entry.first == m; });
        if (loss == here.end()) {
          throw Error("micro-batch " + std::to_string(m) +
                      " never reached the last stage; verify the plan");
        }
        result.losses.push_back(loss->second);
      }
    }
  }
  result.loss = MeanLoss(result.losses);
  return result;
}

namespace {

/// Calls take(s, device, first) for every stage and device of this process that has a copy of it;
/// `first` tells whether it is the stage's first holder.
template <typename Take>
void EachCopy(const Plan& plan, Run& run, const Take& take) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
    for (const Device& device : run.devices()) {
      if (std::find(ranks.begin(), ranks.end(), device.rank) == ranks.end()) continue;
      take(s, device, device.rank == ranks.front());
    }
  }
}

}  // namespace

std::vector<StateBlock> SavedState(const Plan& plan, Run& run) {
  std::vector<StateBlock> saved;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    if (!first || device.replica != 0) return;
    Stage& stage = run.At(device).StageAt(s);
    const float* const experts = stage.parameters().data() + stage.dense_gradients().size();
    for (StateBlock& block : StateOf(stage)) {
      const bool expert = block.parameters.data() >= experts;
      if (expert || device.member == 0) saved.push_back(std::move(block));
    }
  });
  return saved;
}

std::vector<StateBlock> WholeState(const Plan& plan, Run& run) {
  std::vector<StateBlock> all;
  EachCopy(plan, run, [&](int s, Device device, bool) {
    std::vector<StateBlock> blocks = StateOf(run.At(device).StageAt(s));
    all.insert(all.end(), std::make_move_iterator(blocks.begin()),
               std::make_move_iterator(blocks.end()));
  });
  return all;
}

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

std::string WriteDigests(const std::map<std::string, Digest>& digests) {
  std::string bytes;
  for (const auto& [name, digest] : digests) {
    bytes += name;
    bytes += '\0';
    bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  return bytes;
}

std::map<std::string, Digest> ReadDigests(std::string_view bytes) {
  std::map<std::string, Digest> digests;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\0');
    Digest digest;
    if (end == std::string_view::npos || bytes.size() - end - 1 < digest.size()) {
      throw Error("the digests of a process are cut off");
    }
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(end) + 1, digest.size(),
                reinterpret_cast<char*>(digest.data()));
    digests[std::string(bytes.substr(0, end))] = digest;
    bytes.remove_prefix(end + 1 + digest.size());
  }
  return digests;
}

}  // namespace contraflow
