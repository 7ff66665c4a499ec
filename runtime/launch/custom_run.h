#pragma once

#include <memory>
#include <vector>

#include "runtime/core/devices.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/core/step.h"
#include "runtime/core/transport.h"
#include "runtime/host/arenas.h"
#include "runtime/launch/control.h"
#include "runtime/launch/process_run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/stages/custom_backend.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// Trains custom stages with a plan on the host: every device is a thread of this process.
class CustomRun : public CustomTraining {
 public:
  /// `stages` must outlive the run. Throws Error if a stage cannot be made.
  CustomRun(const CustomStages& stages, const ThreadNetwork::Options& options,
            bool fill = kFillUnused);

  StepResult Step(int step) override { return threads_.Step(step); }
  const std::vector<Device>& devices() const override { return threads_.devices(); }
  CustomDevice& At(Device device) override { return threads_.At(device).device(); }
  std::unique_ptr<CustomTraining> NewBeside(const CustomStages& stages) override;

 private:
  const ThreadNetwork::Options options_;
  DeviceThreads<CustomBackend> threads_;
};

/// Trains custom stages with a plan on the host: this process is one of its devices, the others of
/// the job are the others. Process 0 gets what all of them did.
class CustomProcessRun : public CustomTraining {
 public:
  /// The order has as many processes as the job. All arguments must outlive the run. Throws Error
  /// if a stage cannot be made.
  CustomProcessRun(const CustomStages& stages, const RankOrder& order, Transport& transport,
                   Control& control, Progress& progress, bool fill = kFillUnused);

  StepResult Step(int step) override { return process_.Step(step); }
  const std::vector<Device>& devices() const override { return process_.devices(); }
  CustomDevice& At(Device device) override { return process_.At(device).device(); }
  /// All devices of the plan are threads of this process.
  std::unique_ptr<CustomTraining> NewBeside(const CustomStages& stages) override;

 private:
  DeviceProcess<CustomBackend> process_;
};

}  // namespace contraflow
