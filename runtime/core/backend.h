#pragma once

#include <cstddef>
#include <span>

#include "compiler/plan/instruction.h"

namespace contraflow {

/// What the instructions of one rank do, on some device. It keeps what one instruction leaves for
/// another: activations and gradients between stages, stashes between F, B and W. Stages that are
/// neighbours on the same rank hand over without a message. A value that is asked for and not
/// there, or made twice, is an Error. Used by one thread at a time.
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
  /// Where a RECV puts its bytes. The caller sees to it that they are there before an instruction
  /// that consumes them runs.
  virtual std::span<std::byte> Incoming(const Instruction& receive) = 0;
  /// The gradients of a stage, for REDUCE to sum in place: those that every copy of the stage has,
  /// over replicas, members of the expert group and holders.
  virtual std::span<float> Gradients(int stage) = 0;
  /// The gradients of the experts that this member of the expert group owns, to be summed over
  /// replicas and holders that are the same member. Empty where `Gradients` has them all.
  virtual std::span<float> ExpertGradients(int stage);
  /// STEP.
  virtual void OptimizerStep(int stage) = 0;
  /// Throws Error if a value was made that nothing has used.
  virtual void EndStep() = 0;
};

inline std::span<float> Backend::ExpertGradients(int) { return {}; }

}  // namespace contraflow
