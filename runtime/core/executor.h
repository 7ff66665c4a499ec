#pragma once

#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/backend.h"
#include "runtime/core/progress.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// Throws Error, with the remedy, unless the plan can be executed: level comm, or components at
/// level component or buffer.
void CheckExecutable(const Plan& plan);

/// Walks one rank's program step by step, in order; nothing but the program decides what is done.
/// A RECV is posted where it stands and waited for by the instruction that consumes it, which at
/// level comm follows from what it computes, and is said by its `after` where there are events. A
/// SEND is posted where it stands; its bytes are given back once it has left, at the latest before
/// an instruction runs that names it in `after`. All memory for the walk is allocated when it is
/// made.
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
  std::string Place() const;
  void Enter(int64_t index);
  size_t GroupEnd(size_t first) const;
  void Execute(size_t index);
  void Reduce(size_t index);
  void PostGroup(size_t first);
  void AwaitNeeds(size_t index);
  void FreeSent();
  void Finish();
  Time Since(Clock::time_point moment) const;

  const Program& program_;
  const int rank_;
  const std::vector<std::vector<int>> holders_;
  Backend& backend_;
  Transport& transport_;
  Progress* const progress_;
  // What instruction i waits for: messages needs_[needs_begin_[i] .. needs_begin_[i + 1]).
  std::vector<size_t> needs_begin_, needs_;
  std::vector<Transfer> transfers_;  // by instruction
  std::vector<Span> spans_;
  std::vector<Transfer*> group_;
  std::vector<size_t> leaving_;  // SENDs that are not done yet
  Clock::time_point origin_;
  int step_ = 0;
  bool begun_ = false;
  size_t next_ = 0, at_ = 0;  // where the walk goes on; what it is doing, for messages
};

}  // namespace contraflow
