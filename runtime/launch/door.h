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

/// The listener of rank 0. Every caller is heard on a thread of its own and has 10 seconds to prove
/// that it belongs to the job. A caller that does not prove it changes nothing.
class Door {
 public:
  /// A process of the job; its claim fits.
  struct Visitor {
    Socket stream;
    Claim claim;
    Address from;
  };

  /// Listens at the point's address.
  explicit Door(const MeetingPoint& point);
  Door(const Door&) = delete;
  ~Door();

  Address address() const { return LocalAddress(listener_); }
  /// The next one, or none at the deadline.
  std::optional<Visitor> Next(Clock::time_point until);
  /// Names all that were sent away, with the reasons: "10.0.0.7 (does not speak this protocol; 3
  /// times)", or "".
  std::string Refused();
  /// The meeting is over: a process that comes now may ask for the status of the job, and no more.
  /// `answer` is called on threads of the door.
  void Serve(std::function<std::string()> answer);

 private:
  /// A connection that has proven nothing yet.
  struct Caller {
    int fd;
    Clock::time_point since;
    Address from;
  };
  using Callers = std::list<Caller>;

  void Run();
  bool MakeRoom();
  void LetIn(Socket socket);
  void Admit(Visitor* visitor);
  void RequireFit(const Claim& claim);
  void Answer(Callers::iterator caller, Socket socket);

  const MeetingPoint point_;
  const Socket listener_;
  size_t most_;  // callers at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  Callers callers_;  // the oldest first
  std::deque<Visitor> visitors_;
  std::map<std::string, int> refused_;  // times by host and reason
  int more_refused_ = 0;
  std::function<std::string()> answer_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace contraflow
