#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/transport.h"
#include "runtime/gpu/gpu.h"

namespace contraflow {

/// The lanes of one device of a plan as streams of a GPU, and the `after` edges between them as
/// events: a stream for compute, and one each for all-to-all, reductions, and messages to and from
/// every peer, where the program has some; those that communicate come first where SMs are free.
class GpuLanes {
 public:
  /// Lane 0 of every device: compute, where steps begin and end.
  static constexpr size_t kCompute = 0;

  /// Makes streams in the partition, for kernels that count on `sms` SMs, and events. The plan has
  /// lanes. Throws Error if an instruction waits for one that is not issued before it.
  GpuLanes(const Plan& plan, Device device, Gpu& gpu, int partition, int sms);

  /// By lane.
  const std::vector<gpu::Stream>& streams() const { return streams_; }
  /// The lane of an instruction.
  size_t LaneAt(size_t index) const { return static_cast<size_t>(lanes_[index]); }
  gpu::Stream StreamAt(size_t index) const { return streams_[LaneAt(index)]; }
  /// What stands for the end of an instruction that another lane waits for; null: none does.
  GpuEvent* EventAt(size_t index) const { return events_[index]; }
  /// The instructions on other lanes that an instruction waits for; each has an event.
  std::span<const int32_t> WaitsAt(size_t index) const {
    return std::span(waits_).subspan(waits_begin_[index],
                                     waits_begin_[index + 1] - waits_begin_[index]);
  }

 private:
  std::vector<gpu::Stream> streams_;
  std::vector<int32_t> lanes_;       // by instruction
  std::vector<GpuEvent*> events_;    // by instruction
  std::vector<size_t> waits_begin_;  // by instruction, and the end
  std::vector<int32_t> waits_;
};

}  // namespace contraflow
