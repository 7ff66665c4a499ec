#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/links.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/custom_device.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/gpu/state_copies.h"
#include "runtime/host/run.h"
#include "runtime/model/dataset.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"

namespace contraflow {

class GpuSerialRun;

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

/// Makes one device of a plan: on a stream of its own for the setup, for this many SMs.
using MakeGpuBackend =
    std::function<std::unique_ptr<GpuBackend>(Device device, gpu::Stream setup, int sms)>;

/// The devices of a plan that a process has on its GPU.
class GpuDevices {
 public:
  GpuDevices(const GpuDevices&) = delete;
  virtual ~GpuDevices() = default;

  StepResult Step(int step);
  /// Like Run's.
  bool BeginAhead(int step) { return issuer_->BeginAhead(step); }
  const std::vector<Device>& devices() const { return devices_; }
  GpuBackend& At(Device device) const;
  const SmBudget& budget() const { return budget_; }
  /// Like Run's.
  StateCopies* NewCopies();
  /// After the last step; all processes.
  void Close();

 protected:
  /// The plan has lanes. All arguments must outlive it. With `divide` the GPU is not divided yet.
  GpuDevices(const Plan& plan, Gpu& gpu, const SmBudget& budget, bool divide,
             std::vector<Device> devices, const MakeGpuBackend& make);
  /// Makes what gives steps to the GPU, over links_.
  void MakeIssuer(const IssueOptions& options);
  /// Adds the results of other processes, in process 0.
  virtual void Gather(std::vector<DeviceStep>* /*steps*/) {}

  const Plan& plan_;
  Gpu& gpu_;
  const SmBudget budget_;
  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<GpuLanes>> lanes_;       // by device
  std::vector<std::unique_ptr<GpuBackend>> backends_;  // by device
  std::unique_ptr<GpuLinks> links_;
  std::unique_ptr<GpuIssuer> issuer_;
  std::unique_ptr<GpuWatch> watch_;    // null: nobody watches
  std::deque<GpuStateCopies> copies_;  // that were asked for
  Clock::time_point ended_;            // the last step
};

/// One GPU that is all devices of a plan at once: virtual ranks, each in its partition of the SMs,
/// linked by copies.
class VirtualRanks : public GpuDevices {
 public:
  /// The plan is sound (Verify) and has lanes. All arguments must outlive it. Throws Error with the
  /// remedy if the GPU has not SMs enough, or a device cannot be made. With `shared_budget`, the
  /// budget of another run, the GPU is divided already: all devices share its first partition, and
  /// compute on as many SMs as one there.
  VirtualRanks(const Plan& plan, Gpu& gpu, const GpuRunOptions& options, const MakeGpuBackend& make,
               const SmBudget* shared_budget = nullptr);
};

/// Makes the devices of a plan that this process has.
using MakeGpuDevices =
    std::function<std::unique_ptr<GpuDevices>(const Plan& plan, const MakeGpuBackend& make)>;

/// Trains with a plan on GPUs.
class GpuRun : public Run {
 public:
  /// All devices are on one GPU. The plan is sound (Verify) and of level buffer, compiled for a
  /// GPU; the model fitted to its stages. All arguments must outlive the run. Throws Error with
  /// the remedy if the plan, the model or the GPU do not suit.
  GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed, Gpu& gpu,
         const GpuRunOptions& options = {});

  StepResult Step(int step) override { return devices_->Step(step); }
  bool BeginAhead(int step) override { return devices_->BeginAhead(step); }
  const std::vector<Device>& devices() const override { return devices_->devices(); }
  StageHolder& At(Device device) override;
  StateCopies* NewCopies() override { return devices_->NewCopies(); }
  std::string ChosenAlgorithms() const override { return DigestOf(choices_); }
  const MatmulChoices& choices() const { return choices_; }
  const SmBudget& budget() const { return devices_->budget(); }
  void Close() { devices_->Close(); }

  /// A run without a pipeline on the same GPU and as many SMs.
  std::unique_ptr<GpuSerialRun> NewSerialRun();

 protected:
  /// The algorithms of matrix products; `arenas` as of GpuDevice.
  using Choose = std::function<MatmulChoices(gpu::Stream setup, int sms)>;
  GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed, Gpu& gpu,
         const MakeGpuDevices& make, const Choose& choose, const AllocateMemory& arenas);

 private:
  const Plan& plan_;
  const Model& model_;
  const Dataset& dataset_;
  const uint64_t seed_;
  Gpu& gpu_;
  MatmulChoices choices_;  // none: by the estimate of the library
  const std::unique_ptr<GpuDevices> devices_;
};

/// Trains custom stages with a plan on GPUs.
class GpuCustomRun : public CustomTraining {
 public:
  /// All devices are on one GPU. `stages` were made for a GPU, `gpu`'s device is current, and both
  /// outlive the run; `shared_budget` as of VirtualRanks. Throws Error if a stage cannot be made,
  /// or the GPU does not suit.
  GpuCustomRun(const CustomStages& stages, Gpu& gpu, const GpuRunOptions& options = {},
               const SmBudget* shared_budget = nullptr);

  StepResult Step(int step) override { return devices_->Step(step); }
  const std::vector<Device>& devices() const override { return devices_->devices(); }
  CustomDevice& At(Device device) override;
  std::span<const std::byte> Read(const void* at, size_t bytes,
                                  std::vector<std::byte>* room) override;
  /// All devices of the plan share the GPU of this process.
  std::unique_ptr<CustomTraining> NewReference(const CustomStages& stages) override;
  void Close() override { devices_->Close(); }

 protected:
  GpuCustomRun(const CustomStages& stages, Gpu& gpu, const MakeGpuDevices& make,
               const AllocateMemory& arenas);

 private:
  const Plan plan_;  // with lanes
  Gpu& gpu_;
  const std::unique_ptr<GpuDevices> devices_;
  std::optional<gpu::Stream> reads_;  // once something was read
};

/// Returns the options of a run for comparison: its steps are issued anew, and nothing is measured.
inline GpuRunOptions ComparisonRunOptions() { return {{.graph = false, .stamps = 0}}; }

}  // namespace contraflow
