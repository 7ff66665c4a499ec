#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/progress.h"
#include "runtime/launch/fault_report.h"
#include "runtime/launch/meeting.h"

namespace contraflow {

/// Watches over the processes of a job from the thread that serves its connections. Every process
/// tells process 0 its position twice a second, and process 0 leads. It stops the job when
///  - a process fails, or is lost (its connection closes, or it is silent for `silence`),
///  - a process is sent SIGINT, or does not stop in time after another signal,
///  - no process has made progress for `timeout`.
/// The transports of all are aborted, each says its position, process 0 prints one report, and all
/// exit with a code that is not 0. A process that has lost process 0 prints a line of its own. All
/// this takes at most kStopBound from the first knowledge of a fault. Then the process is ended,
/// whatever its main thread does.
class Control {
 public:
  static constexpr std::chrono::milliseconds kStopBound{3'000};
  /// The exit code of processes that stop because another was lost or sent a signal, or none makes
  /// progress: their input has no error.
  static constexpr int kStoppedCode = 75;

  struct Options {
    std::chrono::milliseconds timeout{120'000};  ///< without progress of any process
    std::chrono::milliseconds silence{30'000};   ///< of one process (a machine that is lost)
    std::chrono::milliseconds bound = kStopBound;
    /// After a signal but SIGINT, how long the job has to end in order: Barrier tells it.
    /// 0: it is stopped at once.
    std::chrono::milliseconds grace{0};
    bool catch_signals = true;                       ///< one Control of a process may
    std::string prefix = "contraflow-run: error: ";  ///< of the report
    /// Names a process in the report, by its number in the job.
    std::function<std::string(int process)> name;
    /// Describes the position of this process, without a period: "step 3, instruction 17 (RECV_F s1
    /// m4 from=0): waits for rank 0". Called under the mutex of the watch; must not wait.
    std::function<std::string(const Progress::Snapshot&)> describe;
    /// Called by a main thread that waits for a process in Gather, Broadcast or Barrier: with its
    /// number before, and with -1 after.
    std::function<void(int process)> waiting;
    /// Prints the report; default: stderr. Called at most once, by the leader.
    std::function<void(const std::string& report)> print;
    /// Ends the process; default: EndProcess. It ends by a signal if it was sent one.
    std::function<void(int code)> exit;
  };

  /// Starts watching. `progress` is this process's own and must outlive it.
  Control(Membership membership, const Progress& progress, Options options);
  Control(const Control&) = delete;
  /// Stops watching; where Finish was not called the others take this process for lost.
  ~Control();

  int rank() const;
  int size() const;

  /// Sets a call that wakes the main thread wherever it waits. The control thread calls it when the
  /// job must stop, at most once; OnStop calls it if that is so already. Replaces the one before.
  void OnStop(std::function<void()> wake);

  /// All processes call these in the same order, from their main threads; they wait for each other.
  /// Throw Aborted once the job must stop. Gather: rank 0 gets everybody's bytes, by rank; the
  /// others nothing. Broadcast: all get rank 0's.
  std::vector<std::string> Gather(std::string_view bytes);
  std::string Broadcast(std::string_view bytes);
  /// Returns when all have come; on all whether one of them was asked to stop by a signal.
  bool Barrier();

  /// This process cannot go on: stops the job and, once the report is out, ends the process. Call
  /// it from the main thread with what stopped it, or with what() "" for Aborted. Returns only if
  /// options.exit does.
  void Fail(FaultKind kind, const std::string& what, int code);
  /// The job is done: all processes call it, and from then on may end in any order.
  void Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
