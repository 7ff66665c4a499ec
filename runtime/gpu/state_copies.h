#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "runtime/exec/gpu.h"
#include "runtime/model/state.h"

namespace contraflow {

/// The state of a GPU's stages, copied on a stream of its own: the optimizer waits for its event,
/// nothing else does.
class GpuStateCopies : public StateCopies {
 public:
  /// The GPU must outlive it; it is divided.
  explicit GpuStateCopies(Gpu& gpu);

  std::shared_ptr<std::byte> NewMemory(size_t bytes) override;
  void Begin(std::span<const Part> parts, std::function<void()> then) override;
  bool Poll() override;
  void Await() override;
  void Forget() noexcept override { then_ = nullptr; }

  /// After it all is copied that was begun.
  GpuEvent* copied() const { return copied_; }

 private:
  bool Ended();

  Gpu& gpu_;
  const gpu::Stream stream_;
  GpuEvent* const copied_;
  bool copying_ = false;
  // Not given back before the GPU is done with it, which is waited for with the GPU alone.
  std::shared_ptr<std::byte> memory_;
  std::function<void()> then_;
};

}  // namespace contraflow
