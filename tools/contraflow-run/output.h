#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace contraflow {

/// Lines for a reader who may be slow, stop, or go away, on a disk that may be full: a thread of
/// its own prints them, so that who says something never waits and never fails. Text that nobody
/// reads is dropped once 64 KiB of it are waiting, and counted: "[12 lines dropped: nobody read
/// them]" stands in its place as soon as there is room again.
class Output {
 public:
  /// Without a reader for so long, the last lines are given up.
  static constexpr std::chrono::milliseconds kPatience{5'000};

  /// Prints to that descriptor. SIGPIPE is ignored from now on. Throws Error if there can be no
  /// thread.
  explicit Output(int fd);
  Output(const Output&) = delete;
  /// Leaves half a second for what is still waiting.
  ~Output();

  /// Whole lines.
  void Say(std::string_view text);

  /// Says the last of all, which is never dropped, and waits until it is read, or kPatience has
  /// passed in which nothing was. Lost lines are said on stderr. False if the system refused the
  /// last text (a full disk, a closed stream): then it is nowhere. A reader who stopped or went
  /// away did not want it. Meanwhile `waits` is called again and again.
  bool Finish(std::string_view text, const std::function<void()>& waits = {});

 private:
  struct State;
  bool Drain(std::chrono::milliseconds patience, const std::function<void()>& waits = {});

  // Shared with the thread, which may wait for its reader for longer than this lives.
  const std::shared_ptr<State> state_;
};

/// One line of the program on stderr, "contraflow-run: TEXT". Waits for a reader for a second at
/// most.
void SayNow(const std::string& text);

}  // namespace contraflow
