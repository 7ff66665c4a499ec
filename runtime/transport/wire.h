#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/transport.h"

namespace contraflow {

/// The header of every message: its kind and size, as its sender sees them.
struct Label {
  Instruction instruction;  ///< op, stage, layer, microbatch; the rest does not travel
  int32_t part = 0;         ///< which of several messages of one instruction
  uint64_t bytes = 0;       ///< of the message after it
};

/// Carries bytes between the processes of a job, or threads that stand for them. Messages from one
/// process to another on one channel are taken by receives in the order both were begun in; nothing
/// else is ordered. Used by one thread, but for Abort. A ticket (0 or more) names an operation
/// under way. It may be reused once Test reports that the operation is done.
class Wire {
 public:
  /// The plan's communicators: messages between stages, REDUCE, exchanges of expert groups.
  enum class Channel : uint8_t { kMessages, kSums, kExperts };
  static constexpr int kChannels = 3;

  virtual ~Wire() = default;

  virtual int processes() const = 0;
  virtual int self() const = 0;

  /// Begins to send. The bytes are left alone until it is done, which is not before the other side
  /// has begun to receive them.
  virtual int Send(Channel channel, int to, const Label& label,
                   std::span<const std::byte> bytes) = 0;
  /// Begins to receive exactly this many bytes.
  virtual int Receive(Channel channel, int from, std::span<std::byte> bytes) = 0;

  struct Status {
    bool done = false;
    Label label;              ///< of a receive, once it is done
    Clock::time_point begun;  ///< of a receive, once done: when the label had arrived
  };
  /// Never waits, but makes progress. A receive whose label announces another number of bytes than
  /// it expects is done too, with that label and nothing received. Throws Error if the other
  /// process is lost, Aborted after Abort.
  virtual Status Test(int ticket) = 0;
  /// Makes progress on everything; never waits. Throws like Test.
  virtual void Poll() = 0;
  /// Sleeps until a change is possible, at most some milliseconds.
  virtual void Pause() = 0;
  /// The caller is about to wait for a process, at an instruction; -1: no longer.
  virtual void Waits(int process, const Instruction& at);
  /// Ends all waiting, now and from now on. From any thread.
  virtual void Abort() = 0;
};

inline void Wire::Waits(int, const Instruction&) {}

}  // namespace contraflow
