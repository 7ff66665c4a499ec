#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/progress.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// When a copy to or from the host ran.
struct CopyTimes {
  Clock::time_point start{}, end{};
};

/// Work of the instructions of one rank, on some device. It keeps what one instruction leaves for
/// another: activations and gradients between stages, stashes between F, B and W. Stages that are
/// neighbours on the same rank hand over without a message. Used by one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Forgets the gradients of the last step. Steps count from 1.
  virtual void BeginStep(int step) = 0;
  /// F, B, W, BW or FB, or a component; all-to-all components (and chunks that contain them)
  /// exchange with the expert group inside the call.
  virtual void Compute(const Instruction& instruction) = 0;
  /// The bytes of a SEND, which stay as they are until Sent.
  virtual std::span<std::byte> Outgoing(const Instruction& send) = 0;
  /// The message has left.
  virtual void Sent(const Instruction& send) = 0;
  /// Memory into which a RECV puts its bytes. The caller sees to it that they are there before an
  /// instruction that consumes them runs.
  virtual std::span<std::byte> Incoming(const Instruction& receive) = 0;
  /// The gradients of a stage, for REDUCE to sum in place: those that every copy of the stage has,
  /// over replicas, members of the expert group and holders.
  virtual std::span<float> Gradients(int stage) = 0;
  /// The gradients of the experts that this member of the expert group owns, to be summed over
  /// replicas and holders that are the same member. Empty where `Gradients` has them all.
  virtual std::span<float> ExpertGradients(int /*stage*/) { return {}; }
  /// Runs STEP of a stage.
  virtual void OptimizerStep(int stage) = 0;

  /// Starts an OFFLOAD or RELOAD, which overlaps the following instructions, after the copies in
  /// its direction that were started before it in this step. It begins once this many OFFLOADs of
  /// the step have ended.
  virtual void StartCopy(const Instruction& copy, size_t offloads);
  /// Waits until the first n copies of the step in the direction of `op` have ended.
  virtual void AwaitCopies(Op /*op*/, size_t /*count*/) {}
  /// When the copy with this number, from 0, of those in its direction ran; it has ended.
  virtual CopyTimes TimesOfCopy(Op /*op*/, size_t /*number*/) const { return {}; }
};

/// Throws Error, with the remedy, unless the plan can be executed: level comm, or components at
/// level component or buffer.
void CheckExecutable(const Plan& plan);

/// Walks one rank's program step by step, in order; nothing but the program decides what is done.
/// A RECV is posted where it stands and waited for by the instruction that consumes it, which at
/// level comm follows from what it computes, and is said by its `after` where there are events. A
/// SEND is posted where it stands; its bytes are given back once it has left, at the latest before
/// an instruction runs that names it in `after`. OFFLOAD is started when its forward has ended and
/// RELOAD where it stands; they are waited for, at level comm, by forwards that stand after an
/// OFFLOAD and the backward of a RELOAD, else by what names them in `after`. All memory for
/// the walk is allocated when it is made.
class Executor {
 public:
  /// The plan, backend and transport must outlive it, and so must `progress`, where it publishes
  /// what it does; null: nowhere.
  Executor(const Plan& plan, int rank, Backend& backend, Transport& transport,
           Progress* progress = nullptr);
  Executor(const Executor&) = delete;

  /// One step; afterwards `spans` says when. An error names the instruction it happened at; Aborted
  /// passes as it is. After an error the executor is good for nothing but its destruction, and that
  /// only once no other rank is at work: it may still be copying messages that were posted here.
  void Run(int step, Clock::time_point origin);

  /// When each instruction ran, counted from the `origin` of the step: compute without the waiting
  /// before it, messages as the transport measured them, REDUCE from the arrival of its last
  /// holder.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  void FindNeeds(const Plan& plan);
  void FindCopies(const Plan& plan);
  std::string Place() const;
  void Enter(int64_t index);
  void Execute(size_t first, size_t end);
  void Reduce(size_t index);
  void AwaitCopies(size_t index);
  void StartOffloads(size_t index);
  void PostGroup(size_t first, size_t end);
  void FreeSent();
  void Finish();
  Time Since(Clock::time_point moment) const { return Nanoseconds(moment - origin_); }

  const Program& program_;
  const int rank_;
  const std::vector<std::vector<int>> holders_;
  Backend& backend_;
  Transport& transport_;
  Progress* const progress_;
  /// How many copies to and from the host have to end before an instruction.
  struct CopiesBefore {
    size_t offloads = 0, reloads = 0;
  };

  // Needs by instruction: the messages that it waits for, its own transfer if it is one, and when
  // it ran.
  std::vector<std::vector<size_t>> needs_;
  std::vector<CopiesBefore>
      copies_;  // copies before each instruction; empty if no stage is offloaded
  struct OffloadPlace {
    size_t forward, index;
  };
  std::vector<OffloadPlace> offloads_;  // in their order
  size_t next_offload_ = 0;             // not started yet
  std::vector<Transfer> transfers_;
  std::vector<Span> spans_;
  std::vector<Transfer*> group_;
  std::vector<size_t> leaving_;  // SENDs that are not done yet
  Clock::time_point origin_;
  int step_ = 0;
  int64_t at_ = Progress::kStart;  // current activity, for messages
};

}  // namespace contraflow
