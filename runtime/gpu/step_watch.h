#pragma once

#include <cstdint>

#include "runtime/core/progress.h"
#include "runtime/core/transport.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/step_stamps.h"

namespace contraflow {

/// Publishes where a GPU is that the host has waited for suspiciously long: at the first
/// instruction, in program order, that has begun and not ended. A GPU that is on its way is left
/// alone.
class StepWatch {
 public:
  /// `stamps` of the program; null: nothing is known of a step but its number. What is passed must
  /// outlive it.
  StepWatch(Gpu& gpu, const StepStamps* stamps, Progress& progress);

  /// The host gives a step to the GPU.
  void Begin(int step);
  /// Called again and again while it waits; never waits itself.
  void Look();

 private:
  int64_t Reached() const;

  Gpu& gpu_;
  const StepStamps* const stamps_;
  Progress& progress_;
  gpu::Stream side_{};
  GpuEvent* copied_ = nullptr;
  uint64_t* now_ = nullptr;  // stamps as they were a moment ago
  bool copying_ = false;
  int step_ = 0;
  int64_t published_ = Progress::kStart;
  Clock::time_point next_;  // when to look again
};

}  // namespace contraflow
