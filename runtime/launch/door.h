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

/// The listener of rank 0. Whoever comes is heard on a thread of its own and has 10 seconds to
/// prove that it belongs to the job; none waits for another. What does not prove it changes
/// nothing.
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
  void Admit(Visitor* visitor);
  void RequireFit(const Claim& claim);
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
