#include "runtime/gpu/state_copies.h"

#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

GpuStateCopies::GpuStateCopies(Gpu& gpu)
    : gpu_(gpu), stream_(gpu.NewStream(0, Priority::kNormal, "state")), copied_(gpu.NewEvent()) {
  gpu_.Record(copied_, stream_);
}

std::shared_ptr<std::byte> GpuStateCopies::NewMemory(size_t bytes) {
  memory_ = gpu_.NewHostMemory(bytes);
  return memory_;
}

void GpuStateCopies::Begin(std::span<const Part> parts, std::function<void()> then) {
  CF_ASSERT(!copying_);
  // The last step is done, as its results are known.
  for (const Part& part : parts) {
    gpu_.CopyToHost(stream_, part.to, part.values.data(), part.values.size_bytes());
  }
  gpu_.Record(copied_, stream_);
  copying_ = true;
  then_ = std::move(then);
}

bool GpuStateCopies::Poll() { return !copying_ || (gpu_.Done(copied_) && Ended()); }

void GpuStateCopies::Await() {
  if (!copying_) return;
  gpu_.Synchronize(copied_);
  Ended();
}

bool GpuStateCopies::Ended() {
  copying_ = false;
  if (const std::function<void()> then = std::exchange(then_, nullptr)) then();
  return true;
}

}  // namespace contraflow
