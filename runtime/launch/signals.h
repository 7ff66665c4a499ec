#pragma once

#include <chrono>
#include <ctime>
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
  struct Old;
  Old* old_;
};

/// `SIGTERM`.
std::string SignalName(int signal);

/// Has the kernel kill this process unless it is destroyed before: what remains when no thread of
/// the process can be trusted any more.
class Backstop {
 public:
  explicit Backstop(std::chrono::milliseconds after);
  Backstop(const Backstop&) = delete;
  ~Backstop();

 private:
  std::optional<timer_t> timer_;
};

/// Ends the process without its destructors, and without what stdio has not written, which may
/// wait: by the signal as if nobody had caught it, or, where that is 0, with the code.
[[noreturn]] void EndProcess(int code, int signal);

/// Writes to stderr; what nobody reads within half a second is dropped.
void PrintReport(const std::string& report);

}  // namespace contraflow
