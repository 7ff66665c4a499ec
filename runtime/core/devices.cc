#include "runtime/core/devices.h"

#include <algorithm>

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

std::string NameOf(const Plan& plan, Device device) {
  std::string name;
  if (plan.data_parallel > 1) name += "replica " + std::to_string(device.replica) + " ";
  if (plan.expert_parallel > 1) name += "member " + std::to_string(device.member) + " ";
  return name + "rank " + std::to_string(device.rank);
}

std::vector<int> StagesOf(const Plan& plan, int rank) {
  std::vector<int> stages;
  for (int s = 0; s < plan.stages; ++s) {
    const auto holds = [&](const Route& route) {
      return route.ranks[static_cast<size_t>(s)] == rank;
    };
    if (std::ranges::any_of(plan.routes, holds)) stages.push_back(s);
  }
  return stages;
}

}  // namespace contraflow
