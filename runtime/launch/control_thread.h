#pragma once

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/transport.h"
#include "runtime/launch/control.h"
#include "runtime/launch/control_link.h"

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

/// What one process knows of all that it is connected to, and of itself; and what has gone wrong.
class ControlRoll {
 public:
  explicit ControlRoll(int size) : entries_(static_cast<size_t>(size)) {}

  /// This process hears from `process`, or is that.
  void Watch(int process, Clock::time_point now);
  void Hear(int process, const Beat& beat, Clock::time_point now);
  /// What a process says when the job is stopped.
  void Answer(int process, const Beat& beat, Clock::time_point now);
  void Lose(int process, Clock::time_point now);
  bool IsLost(int process) const { return entries_[static_cast<size_t>(process)].lost; }
  void Finish(int process) { At(process).finished = true; }

  bool AllFinished() const;
  /// Whether nobody is left who may still answer.
  bool AllAnswered() const;
  /// When anything was done last, by anybody.
  Clock::time_point LastMove() const;
  /// As if something had been done now.
  void Excuse(Clock::time_point now);

  /// Adds a fault unless it is there already.
  void Add(const Fault& fault);
  const std::vector<Fault>& faults() const { return faults_; }

  Findings Find(const Fault& cause, Clock::time_point now) const;

 private:
  struct Entry {
    bool watched = false, heard = false, answered = false, lost = false, finished = false;
    Beat beat;
    Clock::time_point told, moved;  // when the beat came; when it last differed in its moves
    Clock::time_point gone{};       // of one that is lost
  };
  Entry& At(int process) { return entries_[static_cast<size_t>(process)]; }

  std::vector<Entry> entries_;
  std::vector<Fault> faults_;
};

/// Where the main thread and the control thread of a process meet: all under the lock.
struct ControlDesk {
  struct Parcel {
    int process = 0;  ///< to or from
    uint8_t operation = 0;
    std::string bytes;
  };

  /// Has the control thread look at the desk.
  void Ring() const;

  std::mutex mutex;
  std::condition_variable changed;
  Socket bell;  ///< an eventfd

  // The main thread's.
  std::vector<Parcel> outgoing;
  bool finish = false, leave = false;
  bool failing = false;         ///< it is in Fail
  std::optional<Fault> failed;  ///< with what, unless another process has the reason
  int code = 1;

  // The control thread's.
  std::vector<std::optional<Parcel>> incoming;  ///< by process
  bool stopped = false;                         ///< the job must stop
  bool finished = false;                        ///< it is done
  bool ended = false;                           ///< options.exit was called

  /// Apart, so that a wake that waits keeps nobody from anything but setting another.
  std::mutex wake_mutex;
  std::function<void()> wake;
};

/// What the thread of a Control does.
class ControlThread {
 public:
  ControlThread(Membership membership, const Progress& progress, Control::Options options,
                ControlDesk& desk);

  void Run();

 private:
  static constexpr int kHubs = 2;  // rank 0 and rank 1

  enum class Phase {
    kWatching,
    kStopped,    ///< last words are gathered
    kEnding,     ///< the report is out
    kFinishing,  ///< the job is done; connections are being closed
    kOver,
  };

  void Wait();
  void ReadSignals();
  void ReadDesk();
  void ReadLinks();
  void NoticeLoss(int process);  // if its connection has closed
  void Take(int from, ControlMessage& message);
  void TakeData(int from, ControlMessage& message);
  bool Plausible(const ControlMessage& message) const;

  void Keep();     // while watching
  void Decide();   // whether the job stops, or is done
  void GoOn();     // while stopped
  void Enforce();  // the bound

  bool Leads() const;
  Fault Own(FaultKind kind, std::string text) const;
  void Suspect();
  void LookAgain();
  void Tell(const Fault& fault);
  void Stop(const Fault& cause);
  void SayWords();
  void Report();
  void End();
  void BeginFinishing();
  bool AnyLink() const;

  ControlLink* Link(int process) const { return links_[static_cast<size_t>(process)].get(); }
  void SendTo(int process, const ControlMessage& message);
  void SendToHubs(const ControlMessage& message);
  void SendToAll(const ControlMessage& message);
  Beat Look() const;

  const int rank_, size_;
  const Progress& progress_;
  const Control::Options options_;
  ControlDesk& desk_;
  std::vector<std::unique_ptr<ControlLink>> links_;  // by process; null to itself and to strangers
  std::optional<SignalCatcher> catcher_;
  std::optional<Backstop> backstop_;
  ControlRoll roll_;

  Phase phase_ = Phase::kWatching;
  Clock::time_point now_ = Clock::now(), next_beat_ = now_;
  uint64_t pieces_ = 0;  // of main threads' data that came: progress too
  bool finish_told_ = false, fault_told_ = false;
  int signal_ = 0;                          // that ends this process
  std::optional<Clock::time_point> known_;  // since when this process knows of a fault
  Clock::time_point stopped_at_{}, end_at_{};
  std::optional<Fault> cause_;
  Beat last_beat_;  // what it was doing when it was stopped, or knew of a fault itself
  Clock::time_point looked_{};
  Clock::duration away_{};  // for how long this process was stopped, last
  bool took_over_ = false, answered_ = false, error_told_ = false;
  bool stop_heard_ = false, reported_ = false, end_heard_ = false;
};

}  // namespace contraflow
