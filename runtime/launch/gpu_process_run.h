#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/custom_device.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/gpu/run.h"
#include "runtime/gpu/serial_run.h"
#include "runtime/host/run.h"
#include "runtime/launch/control.h"
#include "runtime/model/dataset.h"
#include "runtime/nccl/links.h"
#include "runtime/nccl/nccl.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"

namespace contraflow {

/// What a process of a job needs to be one device of a plan on a GPU of its own, linked to the
/// others by NCCL. What is named must outlive the run.
struct GpuProcess {
  const RankOrder& order;  ///< as many processes as the job has
  Gpu& gpu;
  Nccl& nccl;
  Control& control;  ///< its OnStop is taken until the end of the run
  Progress& progress;
  std::chrono::milliseconds timeout;  ///< for joining the others
};

/// That device. Process 0 gets what all of them did. `partition_sms` leaves the rest of the GPU
/// alone; 0: it has all of it.
class GpuRank {
 public:
  /// The plan has lanes; `exchange` as of NcclLinks. All processes make one, which joins them over
  /// NCCL within the timeout. Throws Aborted when the job stops meanwhile.
  GpuRank(const Plan& plan, const NcclExchange& exchange, const GpuProcess& process,
          const GpuRunOptions& options, const MakeGpuBackend& make);
  ~GpuRank();

  /// All processes begin together (Control::Barrier), as their measured times count from there.
  StepResult Step(int step);
  /// As of Run; all processes.
  bool BeginAhead(int step);
  const std::vector<Device>& devices() const;
  GpuBackend& backend();
  /// As of Run.
  StateCopies* NewCopies();
  const SmBudget& budget() const;
  gpu::Stream setup() const;
  /// Ends NCCL in order, after the last step; all processes. Without it NCCL is aborted.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Trains with a plan on GPUs, as one process of a job.
class GpuProcessRun : public Run {
 public:
  /// As GpuRun and GpuRank.
  GpuProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                const GpuProcess& process, GpuRunOptions options = {});

  StepResult Step(int step) override { return rank_.Step(step); }
  bool BeginAhead(int step) override { return rank_.BeginAhead(step); }
  const std::vector<Device>& devices() const override { return rank_.devices(); }
  StageHolder& At(Device device) override;
  StateCopies* NewCopies() override { return rank_.NewCopies(); }
  std::string ChosenAlgorithms() const override { return DigestOf(choices_); }
  const MatmulChoices& choices() const { return choices_; }
  void Close() { rank_.Close(); }

  /// A run without a pipeline beside it on the same GPU, for as many SMs.
  std::unique_ptr<GpuSerialRun> NewSerialRun();

 private:
  const Plan& plan_;
  const Model& model_;
  const Dataset& dataset_;
  const uint64_t seed_;
  Gpu& gpu_;
  MatmulChoices choices_;  // none: by the estimate of the library
  GpuRank rank_;
};

/// Trains custom stages with a plan on GPUs, as one process of a job.
class GpuCustomProcessRun : public CustomTraining {
 public:
  /// As GpuCustomRun and GpuRank.
  GpuCustomProcessRun(const CustomStages& stages, const GpuProcess& process,
                      GpuRunOptions options = {});

  StepResult Step(int step) override { return rank_.Step(step); }
  const std::vector<Device>& devices() const override { return rank_.devices(); }
  CustomDevice& At(Device device) override;
  std::span<const std::byte> Read(const void* at, size_t bytes,
                                  std::vector<std::byte>* room) override {
    return reader_.Read(at, bytes, room);
  }
  /// All devices of the plan share this process's GPU.
  std::unique_ptr<CustomTraining> NewBeside(const CustomStages& stages) override;
  void Close() override { rank_.Close(); }

 private:
  const Plan plan_;  // with lanes
  Gpu& gpu_;
  GpuRank rank_;
  GpuReader reader_;
};

/// What all processes measured, by DeviceNumber, on one clock: each begins its step at 0. A message
/// takes from when both of its ends were ready.
void JoinSpans(const Plan& plan, std::vector<DeviceStep>* steps);

}  // namespace contraflow
