#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/launch/link.h"

namespace contraflow {

/// The connections of a process of a job, and the thread that serves them while the main thread
/// computes. One mutex guards all: it is held during system calls, which never wait.
class LinkSet {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Whom the thread works for, with the mutex held except for fd.
  class Watcher {
   public:
    virtual ~Watcher() = default;

    /// Wakes the thread when it can be read, until OnTurn has read it.
    virtual int fd() const = 0;
    /// Takes a message, whole.
    virtual void OnTalk(int process, uint8_t channel, std::string bytes) = 0;
    /// Called every time the thread has looked around; returns when it is to look again at the
    /// latest. May release the mutex meanwhile.
    virtual Clock::time_point OnTurn(Lock& lock) = 0;
  };
  /// `streams` by process; none to this one itself and to those that it has no connection to.
  LinkSet(int self, std::vector<Stream> streams);
  LinkSet(const LinkSet&) = delete;
  ~LinkSet();

  /// The watcher must outlive the thread. Throws Error where the system has no room for one.
  void Start(Watcher* watcher);
  /// Ends the thread, which writes what is left, for a second at most.
  void Stop();

  int self() const { return self_; }
  int size() const { return static_cast<int>(links_.size()); }
  /// Guards everything below, and the state of the watcher.
  std::mutex& mutex() { return mutex_; }
  /// Notified when something came that a main thread may wait for.
  std::condition_variable& changed() { return changed_; }

  /// Null to itself and to those that it has no connection to.
  Link* At(int process) const { return links_[static_cast<size_t>(process)].get(); }
  bool AnyOpen() const;
  /// Writes at once what the connection takes; the thread writes the rest.
  void Flush(int process);
  /// Has the thread look around.
  void Wake() const { Ring(bell_); }

 private:
  void Run();
  bool Prepare(std::vector<pollfd>* polled) const;

  const int self_;
  Watcher* watcher_ = nullptr;
  std::vector<std::unique_ptr<Link>> links_;
  const Socket bell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  Clock::time_point flush_until_{};  // once it is over
  std::thread thread_;
};

}  // namespace contraflow
