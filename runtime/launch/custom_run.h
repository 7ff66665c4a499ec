#pragma once

#include <memory>
#include <vector>

#include "runtime/launch/process_run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/stages/custom_backend.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// Trains custom stages with a plan on the host.
class CustomRun : public CustomTraining {
 public:
  /// Every device is a thread of this process. `stages` must outlive the run. Throws Error if a
  /// stage cannot be made.
  CustomRun(const CustomStages& stages, const ThreadNetwork::Options& options,
            bool fill = kFillUnused);
  /// This process is one of the devices, the others of the job are the others. Process 0 gets what
  /// all of them did.
  CustomRun(const CustomStages& stages, const HostProcess& process, bool fill = kFillUnused);

  StepResult Step(int step) override { return devices_->Step(step); }
  const std::vector<Device>& devices() const override { return devices_->devices(); }
  CustomDevice& At(Device device) override { return devices_->At(device).device(); }
  /// All devices of the plan are threads of this process.
  std::unique_ptr<CustomTraining> NewReference(const CustomStages& stages) override;

 private:
  const ThreadNetwork::Options options_;
  const std::unique_ptr<HostDevices<CustomBackend>> devices_;
};

}  // namespace contraflow
