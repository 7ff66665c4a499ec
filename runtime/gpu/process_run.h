#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/run.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/run.h"
#include "runtime/gpu/serial_run.h"
#include "runtime/launch/control.h"
#include "runtime/launch/world.h"
#include "runtime/model/dataset.h"
#include "runtime/nccl/nccl.h"

namespace contraflow {

/// Trains with a plan on GPUs: this process is one of its devices, on a GPU of its own, the others
/// of the job are the others, linked by NCCL. Process 0 gets what all of them did. `partition_sms`
/// leaves the rest of the GPU alone; 0: it has all of it.
class GpuProcessRun : public Run {
 public:
  /// As GpuRun; the order has as many processes as the job. All processes make one, which joins
  /// them over NCCL within the timeout. What is passed must outlive the run; Control::OnStop is
  /// taken until its end. Throws Aborted when the job stops meanwhile.
  GpuProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                const RankOrder& order, Gpu& gpu, Nccl& nccl, Control& control, Progress& progress,
                std::chrono::milliseconds timeout, GpuRunOptions options = {});
  ~GpuProcessRun() override;

  /// All processes begin together, as their measured times count from there.
  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override;
  StageHolder& At(Device device) override;

  /// A run without a pipeline beside it on the same GPU, for as many SMs.
  std::unique_ptr<GpuSerialRun> NewSerialRun();
  /// Ends NCCL in order, after the last step; all processes. Without it NCCL is aborted.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What all processes measured, by DeviceNumber, on one clock: each begins its step at 0. A message
/// takes from when both of its ends were ready.
void JoinSpans(const Plan& plan, std::vector<DeviceStep>* steps);

}  // namespace contraflow
