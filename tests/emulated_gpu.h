#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/gpu.h"

namespace contraflow {

/// A GPU in host memory, whose kernels the emulator runs.
class EmulatedGpu : public Gpu {
 public:
  explicit EmulatedGpu(int sms = 132) : sms_(sms) {}

  std::string name() const override { return "emulator"; }
  int sms() const override { return sms_; }
  void Partition(int count, int sms_each) override;
  gpu::Stream NewStream(int partition, Priority priority, const std::string& name) override;
  GpuEvent* NewEvent() override;
  std::byte* Allocate(size_t bytes) override;
  std::byte* AllocateHost(size_t bytes) override;
  void Record(GpuEvent* event, gpu::Stream stream) override;
  void Wait(gpu::Stream stream, GpuEvent* event) override;
  void CopyToDevice(gpu::Stream stream, void* to, const void* from, size_t bytes) override;
  void CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) override;
  void Zero(gpu::Stream stream, void* at, size_t bytes) override;
  void BeginCapture(gpu::Stream stream) override;
  GpuGraph* EndCapture(gpu::Stream stream) override;
  void Launch(GpuGraph* graph, gpu::Stream stream) override;
  bool Done(GpuEvent* event) override;
  void Synchronize(GpuEvent* event) override;
  void Synchronize() override;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  const int sms_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
};

}  // namespace contraflow
