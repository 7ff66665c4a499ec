#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "kernels/gpu/stream.h"
#include "runtime/core/devices.h"
#include "runtime/core/progress.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"

namespace contraflow {

/// When the instructions of one device began and ended in a step, by the clock of the GPU.
class StepStamps {
 public:
  /// For a program of this many instructions.
  StepStamps(size_t instructions, Gpu& gpu);

  /// Stamps the time when the stream gets there.
  void Begin(size_t index, gpu::Stream stream) const;
  void End(size_t index, gpu::Stream stream) const;
  /// Brings the stamps to the host, after all of them.
  void Download(gpu::Stream stream) const;

  /// All become 0, which no time is.
  void Clear(gpu::Stream stream) const;
  /// Copies the stamps as they are to `host`, of bytes() and begin and end by turns, in a stream
  /// that waits for none of them.
  void Peek(gpu::Stream side, uint64_t* host) const;
  size_t bytes() const { return 2 * size_ * sizeof(uint64_t); }

  /// Stamps downloaded, in nanoseconds of the GPU's clock.
  uint64_t begin(size_t index) const { return host_[2 * index]; }
  uint64_t end(size_t index) const { return host_[2 * index + 1]; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  Gpu* gpu_;
  uint64_t *device_, *host_;  // of each instruction begin, end
};

/// The GPU stands still. It can be neither waited for nor given back in order.
struct GpuHang : Error {
  using Error::Error;
};

/// Looks at the stamps of devices on one GPU while the host waits for a step there.
class GpuWatch {
 public:
  struct Watched {
    Device device;
    const StepStamps* stamps;  ///< null: nothing is known of a step but how long it takes
  };

  GpuWatch(const GpuWatch&) = delete;
  virtual ~GpuWatch() = default;

  /// The host gives a step to the GPU, with stamps or without.
  virtual void Begin(int step, bool stamped);
  /// Called again and again while it waits; never waits itself.
  virtual void Look() = 0;
  /// The step is done.
  virtual void End() {}

 protected:
  /// All arguments must outlive it; all have stamps or none. `name` is of a stream.
  GpuWatch(std::vector<Watched> watched, Gpu& gpu, std::chrono::milliseconds interval,
           const std::string& name);

  /// Copies the stamps once an interval. Returns whether new ones have come.
  bool Changed(Clock::time_point now);
  /// The instructions that had begun and not ended, device by device.
  std::vector<IssuePlace> Running() const;

  const std::vector<Watched> watched_;
  const std::chrono::milliseconds interval_;
  bool stamped_ = false;
  int step_ = 0;

 private:
  void Peek();

  Gpu& gpu_;
  gpu::Stream side_{};
  GpuEvent* copied_ = nullptr;
  uint64_t* now_ = nullptr;     // stamps of all devices as they were a moment ago; null without
  std::vector<uint64_t> last_;  // and as they came last
  bool copying_ = false;
  Clock::time_point next_;  // when to copy stamps again
};

/// Notices when a GPU that is several devices of a plan stands still in a step.
class HangWatch : public GpuWatch {
 public:
  HangWatch(const Plan& plan, std::vector<Watched> watched, Gpu& gpu,
            std::chrono::milliseconds timeout);

  void Begin(int step, bool stamped) override;
  /// Throws GpuHang with the step and the instructions that have begun and not ended, if no stamp
  /// has changed for the timeout.
  void Look() override;

 private:
  std::string Names() const;

  const Plan& plan_;
  const std::chrono::milliseconds timeout_;
  Clock::time_point looked_;  // when it looked last
  Clock::duration still_{};   // how long nothing has changed
};

/// Publishes where a GPU is that the host has waited for suspiciously long: at the first
/// instruction, in program order, that has begun and not ended. A GPU that is on its way is left
/// alone.
class StepWatch : public GpuWatch {
 public:
  StepWatch(const Watched& watched, Gpu& gpu, Progress& progress);

  void Begin(int step, bool stamped) override;
  void Look() override;
  void End() override { progress_.Enter(step_, Progress::kEnd); }

 private:
  Progress& progress_;
  int64_t published_ = Progress::kStart;
};

}  // namespace contraflow
