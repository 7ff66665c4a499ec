#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/launch/hello.h"

namespace contraflow {

/// Listener of rank 0. Each connection has a thread and 10 seconds to authenticate. A connection
/// that fails to do so changes nothing.
class Listener {
 public:
  /// An authenticated process of the job whose claim fits.
  struct Peer {
    Socket stream;
    Claim claim;
    Address from;
  };

  /// Listens at the point's address.
  explicit Listener(const MeetingPoint& point);
  Listener(const Listener&) = delete;
  ~Listener();

  Address address() const { return LocalAddress(listener_); }
  /// Returns the next peer, or none at the deadline.
  std::optional<Peer> Next(Clock::time_point until);
  /// Lists the refused connections with reasons: "10.0.0.7 (does not speak this protocol; 3
  /// times)", or "".
  std::string Refused();
  /// Ends the meeting. Later connections may ask for the status of the job, and nothing else.
  /// `answer` is called on threads of the listener.
  void Serve(std::function<std::string()> answer);

 private:
  /// A connection that has not authenticated yet.
  struct Caller {
    int fd;
    Clock::time_point since;
    Address from;
  };
  using Callers = std::list<Caller>;

  void Run();
  bool MakeRoom();
  void LetIn(Socket socket);
  void Admit(Peer* peer);
  void RequireFit(const Claim& claim);
  void Answer(Callers::iterator caller, Socket socket);

  const MeetingPoint point_;
  const Socket listener_;
  size_t most_;  // callers at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  Callers callers_;  // the oldest first
  std::deque<Peer> peers_;
  std::map<std::string, int> refused_;  // times by host and reason
  int more_refused_ = 0;
  std::function<std::string()> answer_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace contraflow
