#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/links.h"
#include "runtime/gpu/custom_device.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/host/run.h"
#include "runtime/model/dataset.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"

namespace contraflow {

/// How a GPU run goes.
struct GpuRunOptions : IssueOptions {
  /// A GpuHang (runtime/exec/step_watch.h) where a GPU with all devices makes no progress for so
  /// long: no stamp changes, or a step without stamps takes longer. 0: never.
  std::chrono::milliseconds timeout{0};
  /// Between processes: messages of the pipeline without a kernel (NcclPuts), so that its SMs
  /// compute.
  bool one_sided = false;
  int partition_sms = 0;  ///< SMs of each device, a multiple of 8; 0: as many as there are for each

  /// File of the algorithms of matrix products (matmul_choices.h), which are timed where it has
  /// none; "": by the library's estimate.
  std::string matmul_choices = {};
};

/// Makes one device of a plan: on a stream of its own for the setup, for so many SMs.
using MakeGpuBackend =
    std::function<std::unique_ptr<GpuBackend>(Device device, gpu::Stream setup, int sms)>;

/// One GPU that is all devices of a plan at once: virtual ranks, each in its partition of the SMs,
/// linked by copies.
class VirtualRanks {
 public:
  /// The plan is sound (Verify) and has lanes. All arguments must outlive it. Throws Error with the
  /// remedy if the GPU has not SMs enough, or a device cannot be made. With `beside`, the budget of
  /// another run, the GPU is divided already: all devices share its first partition, and compute on
  /// as many SMs as one there.
  VirtualRanks(const Plan& plan, Gpu& gpu, const GpuRunOptions& options, const MakeGpuBackend& make,
               const SmBudget* beside = nullptr);
  ~VirtualRanks();

  StepResult Step(int step);
  /// Like Run's.
  bool BeginAhead(int step);
  const std::vector<Device>& devices() const;
  GpuBackend& At(Device device);
  const SmBudget& budget() const;
  /// Like Run's.
  StateCopies* NewCopies();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Trains with a plan on one GPU.
class GpuRun : public Run {
 public:
  /// The plan is sound (Verify) and of level buffer, compiled for a GPU; the model fitted to its
  /// stages. All arguments must outlive the run. Throws Error with the remedy if the plan, the
  /// model or the GPU do not suit.
  GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed, Gpu& gpu,
         GpuRunOptions options = {});

  StepResult Step(int step) override { return ranks_.Step(step); }
  bool BeginAhead(int step) override { return ranks_.BeginAhead(step); }
  const std::vector<Device>& devices() const override { return ranks_.devices(); }
  StageHolder& At(Device device) override;
  StateCopies* NewCopies() override { return ranks_.NewCopies(); }
  std::string ChosenAlgorithms() const override { return DigestOf(choices_); }
  const MatmulChoices& choices() const { return choices_; }
  const SmBudget& budget() const { return ranks_.budget(); }

 private:
  MatmulChoices choices_;  // none: by the estimate of the library
  VirtualRanks ranks_;
};

/// Trains custom stages with a plan on one GPU.
class GpuCustomRun : public CustomTraining {
 public:
  /// `stages` were made for a GPU, `gpu`'s device is current, and both outlive the run; `beside` as
  /// of VirtualRanks. Throws Error if a stage cannot be made, or the GPU does not suit.
  GpuCustomRun(const CustomStages& stages, Gpu& gpu, const GpuRunOptions& options = {},
               const SmBudget* beside = nullptr);

  StepResult Step(int step) override { return ranks_.Step(step); }
  const std::vector<Device>& devices() const override { return ranks_.devices(); }
  CustomDevice& At(Device device) override;
  std::span<const std::byte> Read(const void* at, size_t bytes,
                                  std::vector<std::byte>* room) override {
    return reader_.Read(at, bytes, room);
  }
  std::unique_ptr<CustomTraining> NewBeside(const CustomStages& stages) override;

 private:
  const Plan plan_;  // with lanes
  Gpu& gpu_;
  VirtualRanks ranks_;
  GpuReader reader_;
};

/// Returns the options of a run for comparison: its steps are issued anew, and nothing is measured.
inline GpuRunOptions ComparisonRunOptions() { return {{.graph = false, .stamps = 0}}; }

}  // namespace contraflow
