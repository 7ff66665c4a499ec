#include "runtime/launch/custom_run.h"

#include <chrono>

namespace contraflow {

CustomRun::CustomRun(const CustomStages& stages, const ThreadNetwork::Options& options, bool fill)
    : options_(options),
      devices_(std::make_unique<DeviceThreads<CustomBackend>>(
          stages.plan(), options, [&](Device device, Transport&) {
            return std::make_unique<CustomBackend>(stages, device, fill);
          })) {}

// The watch over the job ends a run that hangs.
CustomRun::CustomRun(const CustomStages& stages, const HostProcess& process, bool fill)
    : options_{.timeout = std::chrono::hours(24)},
      devices_(std::make_unique<DeviceProcess<CustomBackend>>(
          stages.plan(), process, stages.bytes()[static_cast<size_t>(Value::input)],
          [&](Device device, Transport&) {
            return std::make_unique<CustomBackend>(stages, device, fill);
          })) {}

std::unique_ptr<CustomTraining> CustomRun::NewReference(const CustomStages& stages) {
  return std::make_unique<CustomRun>(stages, options_);
}

}  // namespace contraflow
