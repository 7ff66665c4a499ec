#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/transport/socket.h"

namespace contraflow {

/// Which of several descriptors have something to read or can be written to.
class Readiness {
 public:
  /// Asks for one descriptor at the next Wait.
  void Add(const Socket& socket, bool write = false);
  /// Waits until one is ready or the time has come, and forgets what it was asked for.
  void Wait(Clock::time_point until);
  /// Whether it was ready (or broken) at the last Wait.
  bool Has(const Socket& socket) const;

 private:
  std::vector<pollfd> asked_;
  std::vector<bool> ready_;  // by descriptor
};

/// Who has proven that it belongs to the job.
struct Peer {
  Socket socket;
  Claim claim;
  Address address;  ///< where it comes from
};

/// A process's listener, and those who have come to it and have not proven yet that they belong to
/// the job: each has a few seconds to do so, and none waits for another.
class Acceptor {
 public:
  /// With a `user`, connections of others are closed at once.
  Acceptor(Socket listener, std::string secret, int rank, int size,
           std::optional<uint32_t> user = {});

  const Socket& listener() const { return listener_; }

  void Ask(Readiness* readiness) const;
  /// Goes on with everyone as far as it can; never waits. Returns those who have proven it since;
  /// what they claim is true, but may not fit.
  std::vector<Peer> Serve(const Readiness& readiness);

  /// Takes note of one that was sent away.
  void Refuse(const Address& address, const std::string& reason);
  /// Who was sent away, and why: "10.0.0.7 (does not speak this protocol; 3 times)", or "".
  std::string Refused() const;

 private:
  struct PendingPeer {
    Socket socket;
    Address address;
    Clock::time_point deadline;
    Inbox inbox{kHelloBytes};
    Claim claim;
    std::string hello, challenge;  // once they are said
  };

  bool HasRoom() const;
  void LetIn();
  /// What a pending peer is to be sent away for, or "".
  std::string Advance(PendingPeer* pending);
  std::string Answer(PendingPeer* pending);

  const Socket listener_;
  const std::string secret_;
  const int rank_, size_;
  const std::optional<uint32_t> user_;
  size_t most_;                       // pending peers at a time
  std::vector<PendingPeer> pending_;  // the oldest first
  std::map<std::string, int> refused_;
  int more_refused_ = 0;
};

/// What the other side refuses a connection for, or ends the meeting for, in its own words.
struct ToldError : Error {
  using Error::Error;
};

/// A connection that this process makes to another of its job: both sides prove that they belong to
/// it, and the other side accepts what it is for.
class Call {
 public:
  enum class State { kGoing, kStands, kClosed };

  /// `socket` is connected or about to be; `whom` is for messages: "rank 2 at 10.0.0.2:4711".
  /// With a `user`, one who is another's is none of the job.
  Call(Socket socket, const Claim& claim, std::string secret, std::string whom,
       std::optional<uint32_t> user = {});

  void Ask(Readiness* readiness) const;
  /// Goes on as far as it can; never waits. kClosed: the other side closed the connection before it
  /// accepted; another call may succeed. Throws Error: nobody listens there, the other side is none
  /// of the job, or (ToldError) it refuses.
  State Serve(const Readiness& readiness);
  /// The connection, once it stands.
  Socket Take() { return std::move(socket_); }

 private:
  State Answer();

  Socket socket_;
  std::string secret_, whom_, hello_;
  std::optional<uint32_t> user_;
  bool connected_ = false, proven_ = false;
  Inbox inbox_{kMagicBytes};
  FrameInbox frames_;
};

/// What both sides of a meeting have: rank 0, the host, and the others, its guests.
struct MeetingSide {
  explicit MeetingSide(const MeetingPoint& point);

  /// Takes in a connection of a process with a higher rank, for the watch of rank 1 or for
  /// messages.
  void TakeIn(Peer* peer);
  /// Whether there is a connection to every rank from `first` on.
  bool HasAll(const std::vector<Socket>& sockets, int first) const;
  /// Waits until one of those asked for is ready, or timeouts are to be looked at.
  void Wait() { readiness.Wait(Clock::now() + std::chrono::milliseconds(200)); }

  const MeetingPoint& point;
  const Clock::time_point deadline;
  Membership members;
  std::optional<Acceptor> acceptor;
  Readiness readiness;
};

/// The whole meeting, as another than rank 0.
Membership VisitMeeting(const MeetingPoint& point);

/// How long guests leave the last word to the host, whose clock may have been started a little
/// later; and the host to a guest that knows which of its connections is missing.
constexpr std::chrono::milliseconds kGuestGrace{1'000}, kHostGrace{500};

/// Sends what is small and fits into the buffers of a new connection; whether it could.
bool TrySend(const Socket& socket, const std::string& bytes,
             Clock::time_point deadline = Clock::now());

/// Sends a frame over all of them as far as that goes, and lets the other sides close them (for a
/// moment at most): closing first could destroy what they have not read yet.
void Part(std::span<Socket* const> sockets, const std::string& frame);
inline void Part(Socket* socket, const std::string& frame) {
  Part(std::span<Socket* const>(&socket, 1), frame);
}

/// `60 s` or `250 ms`.
std::string Seconds(std::chrono::milliseconds time);
/// `rank 3`, `ranks 1, 4-7`; ascending.
std::string RankNames(const std::vector<int>& ranks);

}  // namespace contraflow
