#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/transport/stream.h"

namespace contraflow {

/// What a process needs to find the others of its job.
struct MeetingPoint {
  int rank = 0, size = 1;
  /// Where rank 0 listens, and the others come to. For rank 0 the port may be 0 where `ready` tells
  /// the others about it.
  Address address;
  /// Known to the processes of the job and to nobody else: every connection is TLS with it as the
  /// key (Stream). "": connections are plain, and only processes of `user` are admitted, all on one
  /// machine.
  std::string secret;
  std::optional<uint32_t> user;
  /// The launcher's name of the job, which its processes have alike.
  std::string job;
  std::chrono::milliseconds timeout{60'000};
  /// Connects every pair of processes, and not only all with rank 0 and rank 1.
  bool mesh = false;
  /// Rank 0 calls it once it listens, with the address.
  std::function<void(const Address&)> ready;
};

/// What a connection is for: to come to the meeting, to join two of its guests, or to ask what the
/// job does.
enum class Purpose : uint32_t { kMeet, kLink, kAsk };

/// What a process says of itself when it connects to another, as it goes over the wire.
struct Claim {
  Purpose purpose = Purpose::kMeet;
  int32_t from = 0, to = 0, size = 1;
  int32_t port = 0;  ///< where it listens itself
  uint32_t mesh = 0;
};

/// What is said on a connection until the meeting is over; each in a frame of two 32-bit numbers,
/// word and length, and a text.
enum class Word : uint32_t {
  kWelcome,  ///< to who connects: this connection stands
  kRoster,   ///< from rank 0: all have come, and listen there; and how long it waits for them
  kReady,    ///< to rank 0: all connections of this process stand
  kGo,       ///< from rank 0: those of all
  kFailed,   ///< the meeting is over: the reason
  kLost,     ///< the same, and one that had come was lost
  kStatus,   ///< to who asks: what the job does
};
struct Said {
  Word word = Word::kFailed;
  std::string text;
};
void Say(Stream* stream, Word word, std::string_view text, Clock::time_point deadline);
/// Throws Stream::Closed, or Error: what comes is no such frame, or does not come in time.
Said Hear(Stream* stream, Clock::time_point deadline);
/// Says it to all of them as far as that goes, and lets the other sides close (for a moment at
/// most): closing first could destroy what they have not read yet.
void Part(std::deque<Stream> streams, Word word, std::string_view text);

/// What the other side refuses a connection for, in its own words, which are fit for a terminal.
struct ToldError : Error {
  using Error::Error;
};
/// Connects to a process of the job: both sides prove that they belong to it, and the other side
/// accepts what the connection is for. `whom` is for messages: "rank 2 at 10.0.0.2:4711". Returns
/// none where the other side closed before it accepted: another attempt may succeed. Throws Error:
/// who answers there is none of the job; ToldError.
Stream Greet(Socket socket, const Claim& claim, const MeetingPoint& point, const std::string& whom,
             Clock::time_point deadline);

/// A process's listener. Whoever comes is heard on a thread of its own and has 10 seconds to prove
/// that it belongs to the job; none waits for another. What does not prove it changes nothing.
class Door {
 public:
  /// Who has proven it; its claim fits the job.
  struct Visitor {
    Stream stream;
    Claim claim;
    Address from;
  };

  Door(const Address& at, const MeetingPoint& point);
  Door(const Door&) = delete;
  ~Door();

  Address address() const { return LocalAddress(listener_); }
  /// The next one, or none at the deadline.
  std::optional<Visitor> Next(Clock::time_point until);
  /// Who was sent away, and why: "10.0.0.7 (does not speak this protocol; 3 times)", or "".
  std::string Refused();
  void Refuse(const Address& from, const std::string& reason);
  /// The meeting is over: who comes now may ask what the job does, and nothing else. `answer` is
  /// called on threads of the door.
  void Serve(std::function<std::string()> answer);

 private:
  /// Someone who has come and proven nothing yet.
  struct Caller {
    int fd;
    Clock::time_point since;
    Address from;
  };
  using Callers = std::list<Caller>;

  void Run();
  bool MakeRoom();
  void LetIn(Socket socket);
  std::string Admit(Stream* stream, Socket socket, Claim* claim);
  std::string Misfit(const Claim& claim);
  void Answer(Callers::iterator caller, Socket socket);

  const MeetingPoint point_;
  const Socket listener_, bell_;
  size_t most_;  // callers at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  Callers callers_;  // the oldest first
  std::deque<Visitor> visitors_;
  std::map<std::string, int> refused_;
  int more_refused_ = 0;
  std::function<std::string()> answer_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace contraflow
