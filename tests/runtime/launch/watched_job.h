#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/launch/control.h"
#include "runtime/launch/watch.h"

namespace contraflow {

/// The memberships of a job whose processes are in this one: socket pairs join them to the first.
std::vector<Membership> JoinWatch(int size);

/// Options with a bound long enough on a busy machine: a second for the cause of an error, 2.7 s
/// for a main thread to return, 4 s for all answers. Good answers do not wait for it.
Control::Options Unhurried();

/// A job whose processes are threads: each has a Control, none of them ends this process.
class WatchedJob {
 public:
  /// How a process ended.
  struct End {
    int code = -1;  ///< -1: it was not ended
    bool aborted = false;
    std::string error;  ///< the reported exception of its body
  };
  using Body = std::function<void(int rank, Control& control, Progress& progress)>;

  /// Members of `unwatched` have no Control: the test speaks for them through their membership.
  explicit WatchedJob(int size, const Control::Options& options = Unhurried(),
                      const std::vector<int>& unwatched = {});
  ~WatchedJob();

  int size() const { return static_cast<int>(members_.size()); }
  Progress& progress(int rank) { return members_[static_cast<size_t>(rank)]->progress; }
  Control& control(int rank) { return *members_[static_cast<size_t>(rank)]->control; }
  /// Its connections close, as if it had been killed.
  void Kill(int rank) { members_[static_cast<size_t>(rank)]->control.reset(); }
  Membership& membership(int rank) { return members_[static_cast<size_t>(rank)]->membership; }

  /// Runs the bodies of all that live, as main threads do: an error stops the job. Returns when all
  /// bodies have.
  void Run(const Body& body);
  void StartAll(const Body& body);
  /// Starts the body of one; joined by Join or at the end.
  void Start(int rank, const Body& body);
  void Join();

  End end(int rank);
  /// Reports printed, by whom, in order.
  std::vector<std::pair<int, std::string>> reports();
  /// The only report, or how many there are.
  std::string Report();

 private:
  struct Member {
    Progress progress;
    Membership membership;
    std::unique_ptr<Control> control;
    End end;
    std::thread thread;
  };

  std::mutex mutex_;
  std::vector<std::pair<int, std::string>> reports_;
  std::vector<std::unique_ptr<Member>> members_;
};

/// Waits until the job stops, as a main thread in a transport does; throws Aborted.
void WaitForStop(Control& control);

/// Sends a message as the watch at this end of a connection would.
void SendTalk(Socket& stream, uint8_t channel, const std::string& bytes = {});
/// Bytes of a fault in such a message.
std::string BytesOf(const Fault& fault);

/// The first line of a text.
std::string FirstLine(const std::string& text);

}  // namespace contraflow
