#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/launch/address.h"

namespace contraflow {

/// Facts that a process needs to meet the others of its job.
struct MeetingPoint {
  int rank = 0, size = 1;
  /// The address at which rank 0 listens, and to which the others come. For rank 0 the port may be
  /// 0 where `ready` tells the others about it.
  Address address;
  /// Shared secret of the processes of the job. "": only processes of `user` are admitted, all on
  /// one machine.
  std::string secret;
  std::optional<uint32_t> user;
  /// The launcher's name of the job, which its processes have alike.
  std::string job;
  std::chrono::milliseconds timeout{60'000};
  /// Rank 0 calls it once it listens, with the address.
  std::function<void(const Address&)> ready;
};

/// Why a process connects to rank 0: to come to the meeting, or to ask what the job does.
enum class Purpose : uint32_t { kMeet, kAsk };

/// Identity that a process states when it connects.
struct Claim {
  Purpose purpose = Purpose::kMeet;
  int32_t from = 0, size = 1;
};

/// Messages on a connection until the meeting is over; each is a frame of two 32-bit numbers, word
/// and length, and a text.
enum class Word : uint32_t {
  kWelcome,  ///< to a new process: the connection is accepted
  kGo,       ///< from rank 0: all processes have connected
  kFailed,   ///< the meeting has failed, with the reason
  kLost,     ///< the meeting has failed, since a connected process was lost
  kStatus,   ///< answer to kAsk: the state of the job
};
struct WordFrame {
  Word word = Word::kFailed;
  std::string text;
};
/// Sends a frame. Throws Socket::Closed, or Error at the deadline.
void SendWord(Socket* stream, Word word, std::string_view text, Clock::time_point deadline);
/// Receives a frame. Throws Socket::Closed, or Error if no valid frame arrives in time.
WordFrame ReceiveWord(Socket* stream, Clock::time_point deadline);
/// Sends a word to all that can take it, waits a moment for the peers to close, then closes.
/// Closing first could discard data that a peer has not read yet.
void SendAndClose(std::span<Socket> streams, Word word, std::string_view text);

/// Reason of a peer that refuses a connection, sanitised for display.
struct RefusedError : Error {
  using Error::Error;
};
/// Authenticates both sides of a connection to rank 0, and has the claim accepted. `whom` is for
/// messages: "rank 0 at 10.0.0.2:4711". Returns none if the other side closed before it accepted;
/// another attempt may succeed. Throws RefusedError, or Error if the other side is not of the job.
Socket Handshake(Socket stream, const Claim& claim, const MeetingPoint& point,
                 const std::string& whom, Clock::time_point deadline);
/// The server side of Handshake, without the answer to the claim. Throws Error if the caller fails
/// to authenticate, and RefusedError if it does but its claim does not fit.
Claim Authenticate(Socket* stream, const MeetingPoint& point, Clock::time_point deadline);
/// Why a connection of this user is refused where the job has no secret.
std::string ForeignUser(const std::optional<uint32_t>& user);

}  // namespace contraflow
