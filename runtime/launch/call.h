#pragma once

#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/acceptor.h"
#include "runtime/launch/handshake.h"
#include "runtime/transport/socket.h"

namespace contraflow {

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
  Call(Socket socket, const Claim& claim, std::string secret, std::string whom);

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
  bool connected_ = false, proven_ = false;
  Inbox inbox_{kMagicBytes};
  FrameInbox frames_;
};

}  // namespace contraflow
