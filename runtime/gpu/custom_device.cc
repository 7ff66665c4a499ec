#include "runtime/gpu/custom_device.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/lanes.h"
#include "kernels/gpu/exchange.h"

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

GpuCustomPlace::GpuCustomPlace(Gpu& gpu, int sms)
    : gpu_(gpu), stream_{gpu.NewStream(0, Priority::kNormal, "check").handle, sms} {}

/// A kernel adds up some at a time: the first has the sum of those before.
void GpuCustomPlace::Sum(const std::vector<std::span<float>>& parts) {
  const std::span<float> sum = parts.front();
  constexpr auto kMost = static_cast<size_t>(gpu::kMaxPeers);
  for (size_t begin = 1; begin < parts.size(); begin += kMost - 1) {
    gpu::SumParts some{{sum.data()}, 1};
    for (size_t p = begin; p < std::min(begin + kMost - 1, parts.size()); ++p) {
      some.part[some.count++] = parts[p].data();
    }
    gpu::OrderedSum(stream_, some, sum.size(), stream_.sms);
  }
  // The others have what the sum was when they were added.
  for (size_t p = 1; parts.size() > kMost && p < parts.size(); ++p) {
    gpu::LinkCopy(stream_, sum.data(), parts[p].data(), sum.size_bytes(), stream_.sms);
  }
}

std::span<const std::byte> GpuCustomPlace::Read(const void* at, size_t bytes,
                                                std::vector<std::byte>* room) {
  room->resize(bytes);
  gpu_.CopyToHost(stream_, room->data(), at, bytes);
  gpu_.Synchronize();
  return *room;
}

}  // namespace contraflow
