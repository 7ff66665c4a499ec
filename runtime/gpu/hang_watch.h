#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "runtime/core/transport.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/step_stamps.h"

namespace contraflow {

/// The GPU stands still. It can be neither waited for nor given back in order.
struct GpuHang : Error {
  using Error::Error;
};

/// Notices when a GPU that is several devices of a plan stands still in a step.
class HangWatch {
 public:
  struct Watched {
    Device device;
    const StepStamps* stamps;  ///< null: nothing is known of a step but how long it takes
  };

  /// What is passed must outlive it; all have stamps or none.
  HangWatch(const Plan& plan, std::vector<Watched> watched, Gpu& gpu,
            std::chrono::milliseconds timeout);

  /// The host gives a step to the GPU.
  void Begin(int step);
  /// Called again and again while it waits; never waits itself. Throws GpuHang with the step and
  /// the instructions that have begun and not ended, if no stamp has changed for the timeout.
  void Look();

 private:
  void Peek();
  std::string Running() const;

  const Plan& plan_;
  const std::vector<Watched> watched_;
  Gpu& gpu_;
  const std::chrono::milliseconds timeout_, interval_;
  gpu::Stream side_{};
  GpuEvent* copied_ = nullptr;
  uint64_t* now_ = nullptr;     // stamps of all devices as they were a moment ago; null without
  std::vector<uint64_t> last_;  // and as they were before they changed last
  bool copying_ = false;
  int step_ = 0;
  Clock::time_point looked_, next_;  // when it looked last, and when to copy stamps again
  Clock::duration still_{};          // how long nothing has changed
};

}  // namespace contraflow
