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

/// A meeting of the processes of a job, as one of them knows it.
struct MeetingPoint {
  int rank = 0, size = 1;
  /// The address at which rank 0 listens, and to which the others come. For rank 0 the port may be
  /// 0 where `ready` tells the others about it.
  Address address;
  /// Known to the processes of the job and to no one else. "": only processes of `user` are
  /// admitted, all on one machine.
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

/// The words of a process about itself when it connects.
struct Claim {
  Purpose purpose = Purpose::kMeet;
  int32_t from = 0, size = 1;
};

/// Messages on a connection until the meeting is over; each is a frame of two 32-bit numbers, word
/// and length, and a text.
enum class Word : uint32_t {
  kWelcome,  ///< to who connects: this connection stands
  kGo,       ///< from rank 0: all have come
  kFailed,   ///< the meeting is over: the reason
  kLost,     ///< the same, and one that had come was lost
  kStatus,   ///< to who asks: what the job does
};
struct Said {
  Word word = Word::kFailed;
  std::string text;
};
void Say(Socket* stream, Word word, std::string_view text, Clock::time_point deadline);
/// Throws Socket::Closed, or Error: what comes is no such frame, or does not come in time.
Said Hear(Socket* stream, Clock::time_point deadline);
/// Says it to all of them as far as that goes, before they are closed, and lets the other sides
/// close (for a moment at most): closing first could destroy what they have not read yet.
void Part(std::span<Socket> streams, Word word, std::string_view text);

/// The other side refuses a connection; its own words, which are fit for a terminal.
struct ToldError : Error {
  using Error::Error;
};
/// Connects to rank 0 of the job: both sides prove that they belong to it, and the other side
/// accepts the claim. `whom` is for messages: "rank 0 at 10.0.0.2:4711". Returns none where the
/// other side closed before it accepted: another attempt may succeed. Throws ToldError, or Error:
/// who answers there is none of the job.
Socket Greet(Socket stream, const Claim& claim, const MeetingPoint& point, const std::string& whom,
             Clock::time_point deadline);
/// The other side of Greet, without the answer to the claim. Throws Error: the caller has not
/// proven that it belongs to the job; ToldError: it has, but does not fit, and may be told.
Claim Recognize(Socket* stream, const MeetingPoint& point, Clock::time_point deadline);
/// Why a connection of this user is refused where the job has no secret.
std::string Foreign(const std::optional<uint32_t>& user);

}  // namespace contraflow
