#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/exit.h"

namespace contraflow {

/// How the processes of one start have ended.
struct ChildrenEnding {
  int code = kExitFine;
  bool lost = false;  ///< a signal ended one that did not come from here, or its code is kExitLost
  int process = -1;   ///< that was lost; -1: nobody here knows
  std::string how = {};  ///< it was lost
};

/// This program once more, as processes that train together. They have the same standard streams
/// and environment, end with this one whatever ends it, and get the signals that it gets.
class Children {
 public:
  /// From now on signals are held back for Wait and Pause. Who is asked to stop has `grace` for it.
  explicit Children(std::chrono::milliseconds grace);

  /// Forgets those of the start before.
  void Clear();
  /// Starts the next one, with this command line. Throws Error if it cannot be.
  void Start(std::vector<std::string> words);
  int count() const { return static_cast<int>(children_.size()); }
  pid_t pid(int child) const { return children_[static_cast<size_t>(child)].pid; }

  /// Waits until all have ended. Where one has failed, the others have Control::kStopBound for it.
  ChildrenEnding Wait();
  /// What may still run elsewhere after one was lost has ended behind this, or a signal has come.
  void Pause();

  /// The first signal that has asked to stop; 0: none.
  int asked() const { return asked_; }
  /// Ends this process by that signal.
  void EndAsAsked();

 private:
  using Clock = std::chrono::steady_clock;

  struct Child {
    pid_t pid = -1;
    bool ended = false;
    int code = 0;         ///< where no signal ended it
    int signal = 0;       ///< that ended it, or 0
    bool killed = false;  ///< by us, as it stayed too long
    Clock::time_point when = {};
  };

  void AwaitSignal(std::chrono::milliseconds most);
  void Reap();
  ChildrenEnding Judge() const;

  const std::chrono::milliseconds grace_;
  sigset_t waited_ = {}, before_ = {};  // signals
  std::vector<Child> children_;
  int asked_ = 0;
  std::optional<size_t> first_;  // that ended with anything but success
  Clock::time_point patience_ = Clock::time_point::max();
};

}  // namespace contraflow
