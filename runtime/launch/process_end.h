#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <string>

namespace contraflow {

/// Catches SIGTERM and SIGINT while it lives (but not one that is ignored); one a process.
class SignalCatcher {
 public:
  SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  ~SignalCatcher();

  /// Readable when one was caught.
  int fd() const;
  /// One that was caught, 0 if none was.
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

/// Ends the process without its destructors: by the signal as if nobody had caught it, or, where
/// that is 0, with the code.
[[noreturn]] void EndProcess(int code, int signal);

/// Writes to stderr in one piece where the system allows it.
void PrintReport(const std::string& report);

}  // namespace contraflow
