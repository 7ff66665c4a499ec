#pragma once

#include <cstddef>
#include <span>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/links.h"
#include "runtime/gpu/products.h"
#include "runtime/stages/custom_stages.h"

namespace contraflow {

/// The plan, with lanes and events where it is of level comm and has none yet.
Plan WithLanes(const Plan& plan);

/// One device of custom stages on a GPU, or on a part of one.
class GpuCustomDevice : public GpuBackend {
 public:
  /// All arguments must outlive the device; `setup` is one of its streams, whose kernels have this
  /// many SMs; `arenas` allocates the arenas. Returns once all is in place; memory without a value
  /// is full of NaN.
  GpuCustomDevice(const CustomStages& stages, Device device, Gpu& gpu, gpu::Stream setup, int sms,
                  const AllocateMemory& arenas = {});

  void Upload(int step, gpu::Stream stream) override;
  void BeginStep(gpu::Stream stream) override;
  void Compute(const Instruction& chunk, gpu::Stream stream) override;
  std::span<std::byte> Message(const Instruction& message) override;
  std::span<std::byte> LinkMemory() const override { return arenas_.all; }
  std::span<float> Gradients(int stage) override { return device_.At(stage).gradients(); }
  std::span<float> ExpertGradients(int /*stage*/) override { return {}; }
  void OptimizerStep(int stage, gpu::Stream stream) override;
  void Download(int step, gpu::Stream stream) override;
  DeviceStep Results(int step) override;

  /// Custom stages have no exchanges.
  void BeforeExchange(const Instruction&, gpu::Stream) override {}
  void AfterExchange(const Instruction&, gpu::Stream) override {}
  ExchangePart Exchange(const Instruction& component) override;

  CustomDevice& device() { return device_; }

 private:
  size_t LossBytes() const { return microbatches_ * sizeof(float); }

  Gpu& gpu_;
  const size_t microbatches_;
  CustomDevice device_;
  Arenas arenas_;
  std::byte *const losses_, *const host_losses_;  // [micro-batches]
};

}  // namespace contraflow
