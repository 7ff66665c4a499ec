#include "runtime/core/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compiler/plan/error.h"
#include "runtime/core/devices.h"

namespace contraflow {

float LossScale(const Plan& plan) {
  return 1.0f / (static_cast<float>(plan.microbatches) * static_cast<float>(plan.data_parallel) *
                 static_cast<float>(plan.expert_parallel));
}

size_t MicrobatchesOfStep(const Plan& plan) {
  return MicrobatchPlace(plan, plan.data_parallel, 0, 0);
}

size_t MicrobatchPlace(const Plan& plan, int replica, int member, int microbatch) {
  const int64_t device = int64_t{replica} * plan.expert_parallel + member;
  return static_cast<size_t>(device * plan.microbatches + microbatch);
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

double NormOf(const std::map<std::string, double>& squares) {
  double sum = 0;
  for (const auto& [name, square] : squares) sum += square;
  return std::sqrt(sum);
}

}  // namespace contraflow
