#include "runtime/gpu/custom_device.h"

#include <cmath>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/lanes.h"

namespace contraflow {

Plan WithLanes(const Plan& plan) {
  Plan with = plan;
  if (plan.level == Level::kComm) AddLanes(&with);
  return with;
}

GpuCustomDevice::GpuCustomDevice(const CustomStages& stages, Device device, Gpu& gpu,
                                 gpu::Stream setup, int sms, const AllocateMemory& allocate)
    : gpu_(gpu),
      microbatches_(static_cast<size_t>(stages.plan().microbatches)),
      device_(stages, device, /*lanes=*/true, setup.handle, sms),
      losses_(gpu.Allocate(LossBytes())),
      host_losses_(gpu.AllocateHost(LossBytes())) {
  arenas_ = AllocateArenas(device_.places().arena_bytes(), gpu, setup, allocate);
  device_.PutValues(arenas_.at, reinterpret_cast<float*>(losses_));
  gpu.Synchronize();
}

void GpuCustomDevice::Upload(int step, gpu::Stream stream) {
  device_.BeginStep(step, stream.handle);
}

void GpuCustomDevice::BeginStep(gpu::Stream stream) { gpu_.Zero(stream, losses_, LossBytes()); }

void GpuCustomDevice::Compute(const Instruction& chunk, gpu::Stream stream) {
  device_.Compute(chunk, stream.handle);
}

std::span<std::byte> GpuCustomDevice::Message(const Instruction& message) {
  return device_.Message(message);
}

void GpuCustomDevice::OptimizerStep(int stage, gpu::Stream stream) {
  device_.At(stage).OptimizerStep(stream.handle);
}

void GpuCustomDevice::Download(int /*step*/, gpu::Stream stream) {
  gpu_.CopyToHost(stream, host_losses_, losses_, LossBytes());
}

DeviceStep GpuCustomDevice::Results(int /*step*/) {
  const auto* const losses = reinterpret_cast<const float*>(host_losses_);
  DeviceStep result;
  for (const int m : device_.losses_here()) {
    if (!std::isfinite(losses[m])) {
      throw Error("the loss of micro-batch " + std::to_string(m) + " is not finite");
    }
    result.losses.emplace_back(m, losses[m]);
  }
  return result;
}

ExchangePart GpuCustomDevice::Exchange(const Instruction& component) {
  throw InternalError(ToString(component) + ": custom stages have no exchanges");
}

}  // namespace contraflow
