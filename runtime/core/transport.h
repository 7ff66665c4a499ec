#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

using Clock = std::chrono::steady_clock;

inline Time Nanoseconds(Clock::duration duration) {
  return std::chrono::nanoseconds(duration).count();
}

/// One of the devices that execute a plan: replicas x members of the expert group x ranks.
struct Device {
  int replica = 0;
  int member = 0;
  int rank = 0;

  bool operator==(const Device&) const = default;
};

/// One SEND or RECV under way. Owned by whoever posts it; neither moved nor freed, and its bytes
/// left alone, until it is done, or no rank of the run calls its transport any more.
struct Transfer {
  Instruction instruction;    ///< SEND_F, SEND_B, RECV_F or RECV_B, with its peer
  std::span<std::byte> data;  ///< what to send, or where to receive exactly so many bytes
  bool done = false;
  Clock::time_point start{}, end{};  ///< once done: the interval of the transfer itself
  Transfer* next = nullptr;          ///< the transport's own
};

/// What a transfer carries: two instructions belong together if and only if their tags are equal.
struct Tag {
  bool forward;  ///< an activation, not a gradient
  int producer;  ///< the stage that made it
  int microbatch;

  bool operator==(const Tag&) const = default;
  auto operator<=>(const Tag&) const = default;
};
Tag TagOf(const Instruction& message);

/// Thrown out of a transport's calls after Abort: another rank has the reason.
struct Aborted : Error {
  Aborted();
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

// What every transport checks, and says about messages that do not fit together. `who` is the other
// device.

/// Begins a Post of rank `self` of so many: sets when the transfers start. Throws Error if there is
/// no such peer.
void BeginPost(std::span<Transfer* const> group, int self, int ranks);
/// Throws Error unless the rank is one of the holders in a Sum.
void RequireHolder(std::span<const int> holders, int rank);
/// Throws Error unless an AllToAll has a part for every member.
void RequireParts(const Instruction& exchange, size_t members, size_t send, size_t receive);
Error WrongMessage(const Instruction& receive, const std::string& who, const Instruction& sent);
Error WrongSize(const Instruction& receive, size_t expected, const std::string& who, uint64_t sent);
Error OtherCount(size_t count, const std::string& who);
Error WrongPart(const Instruction& exchange, size_t expected, const std::string& who,
                uint64_t sent);
/// `here` and `there` are the instructions that two members of an expert group are at.
Error OtherExchange(const std::string& self, const Instruction& here, const std::string& who,
                    const Instruction& there);
/// Likewise of two holders of a stage.
Error OtherReduction(const std::string& self, const Instruction& here, const std::string& who,
                     const Instruction& there);

/// Whether two members are at the same exchange.
bool SameExchange(const Instruction& a, const Instruction& b);

/// The elements that the device `place` of `count` adds up in a Sum.
template <typename T>
std::span<T> ShareOf(std::span<T> values, size_t place, size_t count) {
  const size_t begin = values.size() * place / count;
  return values.subspan(begin, values.size() * (place + 1) / count - begin);
}
/// Adds up the shares of all devices in their order into `sum`, which may be one of them.
void AddShares(std::span<const std::span<const float>> shares, std::span<float> sum);

}  // namespace contraflow
