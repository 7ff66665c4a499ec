#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/plan/error.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

using Clock = std::chrono::steady_clock;

inline Time Nanoseconds(Clock::duration duration) {
  return std::chrono::nanoseconds(duration).count();
}

/// One SEND or RECV under way. Owned by whoever posts it; neither moved nor freed, and its bytes
/// left alone, until it is done, or no rank of the run calls its transport any more.
struct Transfer {
  Instruction instruction;    ///< SEND_F, SEND_B, RECV_F or RECV_B, with its peer
  std::span<std::byte> data;  ///< bytes to send, or the buffer to fill
  bool done = false;
  Clock::time_point start{}, end{};  ///< once done: the interval of the transfer itself
  Transfer* next = nullptr;          ///< the transport's own
};

/// Content of a transfer: two instructions belong together if and only if their tags are equal.
struct Tag {
  bool forward;  ///< an activation, not a gradient
  int producer;  ///< the stage that made it
  int microbatch;

  bool operator==(const Tag&) const = default;
  auto operator<=>(const Tag&) const = default;
};
inline Tag TagOf(const Instruction& message) {
  const Op op = message.op;
  CF_ASSERT(WorkOf(op) == Work::kSend || WorkOf(op) == Work::kRecv);
  int producer = message.stage;
  if (op == Op::RECV_F) --producer;  // Names the stage that it is the input of.
  if (op == Op::RECV_B) ++producer;  // Names the stage whose output it is the gradient of.
  return {op == Op::SEND_F || op == Op::RECV_F, producer, message.microbatch};
}

/// Thrown out of a transport's calls after Abort: another rank has the reason.
struct Aborted : Error {
  Aborted() : Error("stopped because another rank failed") {}
};

/// One rank's face to its peers. All calls but Abort are made by that rank's own thread. Messages
/// of a directed edge arrive in the order in which they were posted, and receives of an edge take
/// them in the order in which those were posted; a message whose tag or size is not what its
/// receive expects is an Error.
class Transport {
 public:
  /// Over which devices Sum adds: those of every replica and member of the expert group, or those
  /// of every replica that are the same member as this one.
  enum class Over : bool { kAllMembers, kSameMember };

  virtual ~Transport() = default;

  /// Starts transfers together: none of them waits for another of the group.
  virtual void Post(std::span<Transfer* const> group) = 0;
  /// Whether a posted transfer is done; never waits.
  virtual bool Done(Transfer& transfer) = 0;
  /// Returns when a posted transfer is done.
  virtual void Wait(Transfer& transfer) = 0;

  /// Replaces `values` by their sum over the ranks `holders` (this one among them) of those
  /// devices, added replica by replica, member by member and in the order of `holders`: all get the
  /// same bits. `reduce` is the instruction, for messages. Returns when the last of them arrived.
  virtual Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                                std::span<float> values) = 0;
  /// Exchanges parts inside the expert group of this rank: send[e] goes to member e, receive[e]
  /// gets what member e sent here (of exactly that size), this rank's own part included. All
  /// members call it in the same order; `instruction` must be the same for all. Returns when every
  /// part has arrived and the parts sent may be changed.
  virtual void AllToAll(const Instruction& instruction,
                        std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive) = 0;
  /// Called between instructions, so that transports without a thread of their own make progress;
  /// never waits.
  virtual void Poll() {}
  /// Wakes every rank of the run that this process has: their calls, now and from now on, throw
  /// Aborted. From any thread.
  virtual void Abort() = 0;
};

}  // namespace contraflow
