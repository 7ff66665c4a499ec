#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/launch/link.h"

namespace contraflow {

class Watch;

/// The connections of a process of a job, and the thread that serves them while the main thread
/// computes. One mutex guards all: it is held during system calls, which never wait.
class LinkSet {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// `streams` by process: process 0 has one to each other, the others have one to process 0.
  LinkSet(int self, std::vector<Socket> streams);
  LinkSet(const LinkSet&) = delete;
  ~LinkSet();

  /// The watch must outlive the thread. Throws Error if the system cannot start a thread.
  void Start(Watch* watch);
  /// Ends the thread, which writes the rest for a second at most.
  void Stop();

  int self() const { return self_; }
  int size() const { return size_; }
  /// Guards everything below, and the state of the watcher.
  std::mutex& mutex() { return mutex_; }
  /// Notified when a message came that a main thread may wait for.
  std::condition_variable& changed() { return changed_; }

  std::deque<Link>& all() { return links_; }
  /// Null for a process that it has no connection to.
  Link* At(int process);
  bool AnyOpen() const;
  /// Writes as much as the connection takes; the thread writes the rest.
  void Flush(Link* link);
  /// Begins a turn of the thread.
  void Wake() const { SetEvent(wake_event_); }

 private:
  void Run();

  const int self_, size_;
  Watch* watch_ = nullptr;
  std::deque<Link> links_;
  const Socket wake_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  Clock::time_point flush_until_{};  // once it is over
  std::thread thread_;
};

}  // namespace contraflow
