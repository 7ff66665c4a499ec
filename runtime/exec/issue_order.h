#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"

namespace contraflow {

/// An instruction of one of the devices that a process has.
struct IssuePlace {
  uint32_t device;  ///< index into those devices
  uint32_t index;   ///< into the program of its rank

  bool operator==(const IssuePlace&) const = default;
};

/// The order in which one thread can issue the programs of several devices so that nothing waits
/// for what was not issued before. Its points are single instructions, and meetings: a SEND with
/// its RECV, a REDUCE of all that hold the stage, an all-to-all component of all members. The order
/// of every program is kept, but for messages of one group, which may come in any order, one right
/// after the other as far as the program is concerned. The order depends on the plan alone: ranks
/// take turns, one instruction each, where they have to wait for nobody.
class IssueOrder {
 public:
  /// Order of these devices of the plan, all of them or some; those of one rank alone come in
  /// program order. Throws Error, naming the instructions, if the plan has a message or a reduction
  /// that not all its ranks take part in, or a circle of them that wait for each other. Time and
  /// memory are linear in the plan, and in the points times their devices.
  IssueOrder(const Plan& plan, std::span<const Device> devices);

  /// Number of points.
  size_t size() const { return begins_.size() - 1; }
  /// Devices that take part, without repeats: of a message the SEND first; else replica by replica,
  /// member by member, and of a REDUCE in the order of HoldersOfStage.
  std::span<const IssuePlace> operator[](size_t point) const {
    return std::span(places_).subspan(begins_[point], begins_[point + 1] - begins_[point]);
  }

 private:
  std::vector<size_t> begins_{0};
  std::vector<IssuePlace> places_;  // point by point
};

/// One after the messages that are posted together with the instruction `first`: neighbours of
/// one group.
size_t GroupEnd(const Program& program, size_t first);

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

  /// Streams by lane.
  const std::vector<gpu::Stream>& streams() const { return streams_; }
  /// The lane of an instruction.
  size_t LaneAt(size_t index) const { return lanes_[index]; }
  gpu::Stream StreamAt(size_t index) const { return streams_[LaneAt(index)]; }
  /// The end of an instruction that another lane waits for; null: none does.
  GpuEvent* EventAt(size_t index) const { return events_[index]; }
  /// The instructions on other lanes that an instruction waits for; each has an event.
  std::span<const int32_t> WaitsAt(size_t index) const {
    return std::span(waits_).subspan(waits_begin_[index],
                                     waits_begin_[index + 1] - waits_begin_[index]);
  }

 private:
  std::vector<gpu::Stream> streams_;
  std::vector<uint32_t> lanes_;      // by instruction
  std::vector<GpuEvent*> events_;    // by instruction
  std::vector<size_t> waits_begin_;  // by instruction, and the end
  std::vector<int32_t> waits_;
};

}  // namespace contraflow
