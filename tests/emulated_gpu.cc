#include "tests/emulated_gpu.h"

#include <cstring>
#include <new>

namespace contraflow {
namespace {
constexpr std::align_val_t kAlignment{4096};
}

void EmulatedGpu::Free::operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }

void EmulatedGpu::Partition(int, int) {}
gpu::Stream EmulatedGpu::NewStream(int, Priority, const std::string&) { return {nullptr, sms_}; }
GpuEvent* EmulatedGpu::NewEvent() { return nullptr; }

std::byte* EmulatedGpu::Allocate(size_t bytes) {
  memory_.emplace_back(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  return memory_.back().get();
}
std::byte* EmulatedGpu::AllocateHost(size_t bytes) { return Allocate(bytes); }
void EmulatedGpu::Record(GpuEvent*, gpu::Stream) {}
void EmulatedGpu::Wait(gpu::Stream, GpuEvent*) {}
void EmulatedGpu::CopyToDevice(gpu::Stream, void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void EmulatedGpu::CopyToHost(gpu::Stream, void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void EmulatedGpu::Zero(gpu::Stream, void* at, size_t bytes) { std::memset(at, 0, bytes); }
void EmulatedGpu::BeginCapture(gpu::Stream) {}
GpuGraph* EmulatedGpu::EndCapture(gpu::Stream) { return nullptr; }
void EmulatedGpu::Launch(GpuGraph*, gpu::Stream) {}
bool EmulatedGpu::Done(GpuEvent*) { return true; }
void EmulatedGpu::Synchronize(GpuEvent*) {}
void EmulatedGpu::Synchronize() {}

}  // namespace contraflow
