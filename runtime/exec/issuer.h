#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/links.h"
#include "runtime/exec/step_watch.h"

namespace contraflow {

/// How a step is given to a GPU.
struct IssueOptions {
  bool graph = true;  ///< capture the step once and replay it; else issue it anew every time
  /// Every n steps it is measured when each instruction runs, by two small kernels for each; 0:
  /// never.
  int stamps = 1;
  /// Without a graph: instructions the host may be ahead in a lane; 2 or more.
  int run_ahead = 256;

  bool StampsIn(int step) const { return stamps > 0 && step % stamps == 0; }
};

/// One device that a process issues for.
struct IssuedDevice {
  Device device;
  GpuBackend* backend;
  const GpuLanes* lanes;
};

/// Gives the steps of a plan to a GPU, as the one thread of a process that does: every instruction
/// of its devices, in the order of IssueOrder, on the stream of its lane, after what its `after`
/// names on other lanes. All lanes are forked off one stream and joined to it again, so that a step
/// can be captured as one graph. Allocates nothing once the first step was issued.
class GpuIssuer {
 public:
  /// All arguments must outlive it; the devices are distinct. `waiting` is called again and again
  /// while the host waits for the GPU, and may throw to give up; empty: nothing is. Throws Error if
  /// the plan is unsound (IssueOrder).
  GpuIssuer(const Plan& plan, std::vector<IssuedDevice> devices, Gpu& gpu, GpuLinks& links,
            const IssueOptions& options, std::function<void()> waiting = {});
  GpuIssuer(const GpuIssuer&) = delete;
  ~GpuIssuer() { DropGraphs(); }

  /// One step, from Upload to Download, done when it returns; steps count from 1. With graphs, the
  /// first that is stamped captures one, and the first that is not. An error names the instruction
  /// that was issued when it came; after one the issuer is good for nothing but its destruction.
  void Step(int step);
  /// Like Run's. True with graphs, of steps without stamps, where the devices guard their updates:
  /// then Step(step - 1) also gives `step` to the GPU, before it waits.
  bool BeginAhead(int step);
  /// Whether the step that comes next was begun so.
  bool begun_ahead() const { return begun_ != done_; }

  /// From the next step on, updates of weights also wait for this event, recorded outside of steps;
  /// before the first one.
  void HoldUpdates(GpuEvent* event) { held_.push_back(event); }

  /// Gives captured steps back; the next one captures anew. NCCL does not end a communicator that a
  /// graph still has messages of.
  void DropGraphs() noexcept;

  /// When each instruction of a device ran in the last step, in nanoseconds since the first of this
  /// process began: from when its lane was free and what it waits for was done, messages and REDUCE
  /// from when the last that takes part was. Empty if that step had no stamps.
  std::vector<Span> SpansOf(size_t device) const;
  /// The norm of all gradients in the last step, before it was limited; 0 where it is not.
  double norm() const {
    return guard_.limit == 0 ? 0 : host_clips_[static_cast<size_t>(done_ % 2)]->norm;
  }
  bool StampsIn(int step) const { return options_.StampsIn(step); }
  /// The stamps themselves; null where no step has any.
  const StepStamps* StampsOf(size_t device) const {
    return stamps_.empty() ? nullptr : &stamps_[device];
  }

 private:
  /// How far the host is ahead of one lane.
  struct Pace {
    int64_t issued = 0;
    std::array<GpuEvent*, 2> events{};
  };

  void Begin(int step);
  GpuGraph* Capture();
  void PrepareAll(int step);
  void Issue();
  void Fork();
  void Join();
  void AwaitHeld(gpu::Stream stream);
  void PlaceGuard();
  void Guard();
  void AwaitAll();
  size_t UnitEnd(size_t first) const;
  void IssueUnit(size_t first, size_t end);
  void Meet(size_t point);
  void BeginInstruction(IssuePlace place);
  void EndInstruction(IssuePlace place);
  void KeepPace(IssuePlace place);
  void Await(GpuEvent* event);
  const Instruction& InstructionAt(IssuePlace place) const;
  std::string Place() const;

  const Plan& plan_;
  const std::vector<IssuedDevice> devices_;
  Gpu& gpu_;
  GpuLinks& links_;
  const IssueOptions options_;
  const std::function<void()> waiting_;
  const IssueOrder order_;
  std::vector<StepStamps> stamps_;  // by device; empty without
  gpu::Stream origin_;
  GpuEvent* const start_;
  const std::array<GpuEvent*, 2> over_;       // of the steps under way, by turns
  std::vector<GpuEvent*> held_;               // condition that updates wait for
  std::vector<std::vector<GpuEvent*>> ends_;  // of a device's step: begun there, by lane over there
  std::vector<std::vector<Pace>> paces_;      // by device and lane
  std::vector<Participant> participants_;     // of the point at hand
  std::array<GpuGraph*, 2> graphs_{};         // without stamps, with
  // Condition of updates: the numbers of all devices, [devices x numbers], and what comes of them,
  // also on the host, by turns. Null where nothing holds updates back.
  const GpuBackend::UpdateGuard guard_;
  double* numbers_ = nullptr;
  gpu::Clip* clip_ = nullptr;
  std::array<gpu::Clip*, 2> host_clips_{};
  bool stamped_ = false;                  // the last step that was begun
  int ahead_ = 0, begun_ = 0, done_ = 0;  // the last step that may begin ahead, has, is done
  size_t at_ = 0;                         // point, for messages
};

}  // namespace contraflow
