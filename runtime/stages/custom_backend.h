#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compiler/plan/timeline.h"
#include "runtime/core/devices.h"
#include "runtime/core/executor.h"
#include "runtime/core/step.h"
#include "runtime/host/arenas.h"
#include "runtime/stages/custom_stages.h"

namespace contraflow {

/// One device of custom stages that compute on the host.
class CustomBackend : public Backend {
 public:
  /// `stages` must outlive it. With `fill` memory without a value is full of NaN.
  CustomBackend(const CustomStages& stages, Device device, bool fill = kFillUnused);

  void BeginStep(int step) override;
  /// Throws Error if a loss is not finite; OptimizerStep, if a gradient is not: then nothing is
  /// updated.
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override { return Message(send); }
  void Sent(const Instruction& send) override { arenas_.Leave(device_.places().Of(send)); }
  std::span<std::byte> Incoming(const Instruction& receive) override { return Message(receive); }
  std::span<float> Gradients(int stage) override { return device_.At(stage).gradients(); }
  void OptimizerStep(int stage) override;

  CustomDevice& device() { return device_; }
  /// Returns the results of a step that has ended.
  DeviceStep Results(std::vector<Span> spans) const;

 private:
  std::span<std::byte> Message(const Instruction& message);

  const int stages_;
  std::vector<float> losses_;  // by micro-batch
  CustomDevice device_;
  HostArenas arenas_;
  int step_ = 0;
};

}  // namespace contraflow
