#include "runtime/core/run.h"

#include <algorithm>
#include <string>

#include "compiler/plan/error.h"

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

StepResult JoinDevices(const Plan& plan, std::span<const DeviceStep> devices, Time duration) {
  CF_ASSERT(devices.size() == DeviceCount(plan));
  StepResult result;
  result.duration = duration;
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

}  // namespace contraflow
