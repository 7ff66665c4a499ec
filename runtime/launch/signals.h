#pragma once

#include <chrono>
#include <csignal>
#include <ctime>
#include <iterator>
#include <optional>
#include <string>

namespace contraflow {

/// Catches the signals that ask a process to stop (SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP,
/// SIGXCPU) while it lives, but not one that is ignored; one a process.
class SignalCatcher {
 public:
  /// Throws Error where the system has no room for it.
  SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  ~SignalCatcher();

  /// Readable once one was caught.
  int fd() const;
  /// The last that was caught, 0 if none was.
  int Take();

 private:
  static constexpr int kCaught[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU};
  struct sigaction old_[std::size(kCaught)];
};

/// `SIGTERM`.
std::string SignalName(int signal);

/// Has the kernel kill this process unless it is destroyed before, whatever the process's threads
/// do.
class Backstop {
 public:
  explicit Backstop(std::chrono::milliseconds after);
  Backstop(const Backstop&) = delete;
  ~Backstop();

 private:
  std::optional<timer_t> timer_;
};

/// Ends the process by the signal, or with the code if that is 0. Runs no destructors and does not
/// flush stdio, which may wait.
[[noreturn]] void EndProcess(int code, int signal);

/// Writes to stderr. Drops the rest if nobody reads for half a second.
void PrintReport(const std::string& report);

}  // namespace contraflow
