#pragma once

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

struct SearchControl;  // schedules/search/search_control.h

/// Prints on stderr the work that takes long. On a terminal it waits a second and prints one line,
/// which is wiped at the end; if verbose elsewhere, a line a second. No other output may go to the
/// terminal meanwhile.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();

  /// Says something else from now on.
  void Say(std::string what);

 private:
  void Show();

  std::mutex mutex_;
  std::string what_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

/// While it lives, the first Ctrl-C (SIGINT) sets `stop()` instead of ending the process; the
/// second ends it as usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// True from that Ctrl-C on until the next Interrupt is made.
  static const std::atomic<bool>& stop();
  bool happened() const { return stop().load(); }

 private:
  struct sigaction before_ = {};
  bool installed_ = false;
};

/// Has a search end once `stop` is true and report to `progress`, if there is one; both must
/// outlive the control.
SearchControl WatchSearch(const std::atomic<bool>& stop, ProgressLine* progress, Unit unit);

/// Note on a search that took so much longer than its budget that the user should know; else "".
/// Both in nanoseconds.
std::string OverspentNote(double spent, int64_t budget);

/// "interrupted: makespan 66 us is the best so far, 1.20 % above its bound" of a plan whose search
/// was, else "".
std::string DescribeInterrupt(const Plan& plan);

}  // namespace contraflow
