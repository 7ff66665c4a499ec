#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/device.h"
#include "runtime/host/run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"

namespace contraflow {

/// The smallest model for a GPU; its layers are still to be settled.
Model SmallGpuModel(float capacity_factor = 0);

/// A plan of level buffer for the GPU runtime, with one or two layers a stage; the costs of its
/// components are drawn by `seed`.
Plan GpuPlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
                int members, uint64_t seed, int data_parallel = 1);

/// The devices of a plan on one GPU, one instruction after the other in one stream: each rank in
/// the order of its program, every message a rendezvous. The simplest thing that trains with a
/// plan.
class OneByOneRun : public Run {
 public:
  OneByOneRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed, Gpu& gpu,
              gpu::Stream stream, int compute_sms);

  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return devices_; }
  GpuDevice& At(Device device) override { return *backends_[DeviceNumber(plan_, device)]; }

 private:
  struct Window;
  void Run(const std::vector<Device>& members, const Instruction& i);
  void Exchange(const std::vector<Device>& members, const Instruction& i);
  void Transfer(int from, int to, const Instruction& send, const Instruction& receive);
  void Sum(int stage);
  std::vector<Device> MembersOf(int replica, int rank) const;

  const Plan& plan_;
  Gpu& gpu_;
  const gpu::Stream stream_;
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<GpuDevice>> backends_;
};

}  // namespace contraflow
