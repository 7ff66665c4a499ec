#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/control.h"
#include "runtime/launch/fault_report.h"
#include "runtime/launch/link_set.h"
#include "runtime/launch/signals.h"

namespace contraflow {

/// The place of one process in its program.
struct Beat {
  uint64_t moves = 0;
  int32_t step = 0;
  int32_t waits_for = -1;
  uint32_t age_ms = 0;   ///< how long it has been there
  std::string position;  ///< described
};

/// The watch over a job in one of its processes, for Control. All calls hold the mutex of the
/// links; the thread that serves them makes all but the main thread's. stop.cc has the stop of a
/// job.
class Watch {
 public:
  /// Channels of the messages.
  enum Talk : uint8_t {
    kBeat,      ///< heartbeat with the current activity
    kFault,     ///< a fault of the sender
    kStop,      ///< process 0: all must stop, with the reason
    kWords,     ///< last position of the sender, and its error, if any
    kEnd,       ///< process 0: the report is printed
    kData,      ///< bytes of a main thread
    kFinish,    ///< the sender's work is done
    kFinished,  ///< process 0: the work of all processes is done
  };

  /// `links` is started with it and ends before it.
  Watch(LinkSet& links, const Progress& progress, const Control::Options& options);

  // Written by the thread of the links.
  /// Wakes it when it can be read, until OnTurn has read it.
  int fd() const { return catcher_ ? catcher_->fd() : -1; }
  /// Takes a message, whole. Throws Error if no process of a job sends it.
  void OnTalk(int process, uint8_t channel, std::string bytes);
  /// Called after each turn of the thread; returns the time of the next at the latest. May release
  /// the mutex meanwhile.
  Clock::time_point OnTurn(LinkSet::Lock& lock);

  // Written by the main thread, which wakes the links afterwards.
  /// Sends data over the connection to a process.
  void SendData(int process, std::string bytes);
  /// Data of a process that the main thread has not taken, the oldest first.
  std::deque<std::string>& Incoming(int process) { return At(process).incoming; }
  bool asked() const { return asked_ != 0; }
  bool stopped() const { return phase_ >= Phase::kStopped; }  ///< the job must stop
  bool finished() const { return phase_ == Phase::kFinishing || phase_ == Phase::kDone; }
  bool ended() const { return phase_ == Phase::kEnded; }
  bool over() const { return phase_ == Phase::kDone || ended(); }
  void Finish();
  void Leave() { leave_ = true; }
  /// `fault` unless another process has the reason.
  void Fail(std::optional<Fault> fault, int code);
  /// Called once when the job must stop, under wake_mutex and without the mutex of the links. A
  /// wake that waits delays OnStop alone.
  std::function<void()> wake;
  std::mutex wake_mutex;
  /// Describes all processes, for `contraflow-run --status`.
  std::string Status() const;

 private:
  /// The state of another process, or of this one.
  struct Member {
    bool watched = false;   // it beats to this process, or is this process
    bool answered = false;  // it has said its last words
    bool finished = false;  // its work is done
    Beat beat;
    Clock::time_point told, moved;  // times of the last beat, and of the last with new moves
    std::optional<Clock::time_point> lost;  // time of its loss
    std::deque<std::string> incoming;       // for the main thread
  };

  enum class Phase {
    kWatching,
    kFinishing,  ///< the work of all is done; connections are being closed
    kDone,       ///< they are closed, or this process has left
    kStopped,    ///< last words are gathered
    kEnding,     ///< the report is out
    kEnded,      ///< options.exit was called
  };
  void Advance();
  void WakeOnce(LinkSet::Lock& lock);
  void ReadSignals();
  void NoticeLosses();
  void TakeFault(int from, Fault fault);
  void Keep();
  void Decide();
  void CollectReports();
  void Enforce();

  Member& At(int process) { return members_[static_cast<size_t>(process)]; }
  void NoteBeat(int process, const Beat& beat);
  void Add(const Fault& fault);
  std::vector<Standing> Standings(Clock::time_point now) const;
  template <typename IsSo>
  bool AllWatched(const IsSo& is_so) const {
    return std::all_of(members_.begin(), members_.end(),
                       [&](const Member& member) { return !member.watched || is_so(member); });
  }
  /// Process 0 leads; a process that has lost it leads itself.
  bool Leads() const;
  Fault Own(FaultKind kind, std::string text) const;
  void Suspect();
  void NotePosition();
  void Tell(const Fault& fault);
  void Stop(const Fault& cause);
  void SendReport();
  void Report();
  void End();
  void BeginFinishing();
  void Over(Phase phase);

  static std::string BytesOf(const Beat& beat);
  void SendTo(int process, Talk talk, const std::string& bytes = {});
  void SendToAll(Talk talk, const std::string& bytes = {});
  Beat Look() const;

  LinkSet& links_;
  const int rank_, size_;
  const Progress& progress_;
  const Control::Options& options_;
  std::optional<SignalCatcher> catcher_;
  std::optional<Backstop> backstop_;
  std::vector<Member> members_;  // by process
  std::vector<Fault> faults_;    // in the order of their arrival, each once

  // The main thread's.
  bool leave_ = false;
  bool failing_ = false;         // it is in Fail
  std::optional<Fault> failed_;  // its own fault
  int code_ = 1;

  Phase phase_ = Phase::kWatching;
  Clock::time_point now_ = Clock::now(), next_beat_ = now_;
  uint64_t pieces_ = 0;                     // of main threads' data that came: progress too
  int asked_ = 0;                           // the signal that asks the job to stop in order
  Clock::time_point grace_until_{};         // the end of its grace
  int signal_ = 0;                          // the signal that ends this process
  std::optional<Clock::time_point> known_;  // time at which this process learned of a fault
  Clock::time_point stopped_at_{}, end_at_{};
  std::optional<Fault> cause_;
  Beat last_beat_;              // for the last words of this process
  Clock::time_point looked_{};  // time of last_beat_
  Clock::duration away_{};      // length of the last suspension of this process
  Clock::time_point back_{};    // end of it
  // The beginning of the last step here, for Status.
  int step_ = 0;
  Clock::time_point step_began_{};
  double step_seconds_ = 0;
};

}  // namespace contraflow
