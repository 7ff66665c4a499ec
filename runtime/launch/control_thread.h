#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/control.h"
#include "runtime/launch/control_link.h"
#include "runtime/launch/control_roll.h"
#include "runtime/launch/process_end.h"

namespace contraflow {

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
