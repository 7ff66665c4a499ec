#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/devices.h"
#include "runtime/core/step.h"
#include "runtime/stages/custom_stages.h"

namespace contraflow {

/// A training of custom stages with a plan, as one process sees it.
class CustomTraining {
 public:
  virtual ~CustomTraining() = default;

  /// Steps count from 1; all processes call it. The result is complete in process 0. After an error
  /// the training is good for nothing but its destruction.
  virtual StepResult Step(int step) = 0;
  /// The devices of this process.
  virtual const std::vector<Device>& devices() const = 0;
  virtual CustomDevice& At(Device device) = 0;
  /// Returns bytes of a stage as they are after all work so far: in place, or in `room` on the
  /// host.
  virtual std::span<const std::byte> Read(const void* at, size_t bytes,
                                          std::vector<std::byte>* /*room*/) {
    return {static_cast<const std::byte*>(at), bytes};
  }
  /// Trains another plan of the same stages in this process alone, with products that give the same
  /// bits. All arguments must outlive it, and so must this one.
  virtual std::unique_ptr<CustomTraining> NewReference(const CustomStages& stages) = 0;
  /// After the last step; all processes.
  virtual void Close() {}
};

}  // namespace contraflow
