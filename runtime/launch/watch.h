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
#include "runtime/launch/talk.h"

namespace contraflow {

/// The watch over a job, in one of its processes; Control has what it does. All under the mutex of
/// the links, by the thread that serves them unless it says otherwise. How the job stops is in
/// stop.cc.
class Watch : public LinkSet::Watcher {
 public:
  /// Channels of what is said; the README has what they carry.
  enum Talk : uint8_t {
    kBeat,      ///< I live, and do this
    kFault,     ///< I must stop
    kStop,      ///< all must; says why
    kWords,     ///< what I was doing when I heard of it, and my own error, if any
    kEnd,       ///< the report is out
    kData,      ///< a main thread's
    kFinish,    ///< my work is done
    kFinished,  ///< everybody's is; of rank 0 an order, of others that they leave
  };

  /// `links` is started with it and ends before it.
  Watch(LinkSet& links, const Progress& progress, const Control::Options& options);

  int fd() const override { return catcher_ ? catcher_->fd() : -1; }
  void OnTalk(int process, uint8_t channel, std::string bytes) override;
  Clock::time_point OnTurn(LinkSet::Lock& lock) override;

  // By the main thread, which wakes the links behind it.
  void SendData(int process, std::string bytes);
  /// What came from a process and was not taken, the oldest first.
  std::deque<std::string>& Incoming(int process) { return At(process).incoming; }
  bool asked() const { return asked_ != 0; }
  bool stopped() const { return stopped_; }    ///< the job must stop
  bool finished() const { return finished_; }  ///< it is done
  bool ended() const { return ended_; }        ///< options.exit was called
  void Finish() { finish_ = true; }
  void Leave() { leave_ = true; }
  /// `fault` unless another process has the reason.
  void Fail(std::optional<Fault> fault, int code);
  bool over() const { return phase_ == Phase::kOver; }
  /// Called once when the job must stop, without the mutex of the links but under that of wakes,
  /// which is taken first: a wake that waits keeps nobody from anything but setting another.
  std::function<void()> wake;
  std::mutex wake_mutex;
  /// What all processes do, for one who asks.
  std::string Status() const;

 private:
  /// What this process knows of another, or of itself.
  struct Member {
    bool watched = false;   // this one hears from it regularly, or is it
    bool heard = false;     // at least once
    bool answered = false;  // it has said what it was doing when the job was stopped
    bool lost = false;
    bool finished = false;  // its work is done
    bool left = false;      // for it the job is done
    Beat beat;
    Clock::time_point told, moved;     // when the beat came; when it last differed in its moves
    Clock::time_point gone{};          // of one that is lost
    std::deque<std::string> incoming;  // for the main thread
  };

  enum class Phase {
    kWatching,
    kStopped,    ///< last words are gathered
    kEnding,     ///< the report is out
    kFinishing,  ///< the job is done; connections are being closed
    kOver,
  };
  void Advance();
  void WakeOnce(LinkSet::Lock& lock);
  void ReadSignals();
  void NoticeLosses();
  void TakeFault(int from, Fault fault);
  void Keep();     // while watching
  void Decide();   // whether the job stops, or is done
  void GoOn();     // while stopped
  void Enforce();  // the bound

  Member& At(int process) { return members_[static_cast<size_t>(process)]; }
  void Hear(int process, const Beat& beat);
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
  void LookAgain();
  void Tell(const Fault& fault);
  void Stop(const Fault& cause);
  void SayWords();
  void Report();
  void End();
  void BeginFinishing();
  void Over();

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
  bool finish_ = false, leave_ = false;
  bool failing_ = false;         // it is in Fail
  std::optional<Fault> failed_;  // with what
  int code_ = 1;

  Phase phase_ = Phase::kWatching;
  Clock::time_point now_ = Clock::now(), next_beat_ = now_;
  uint64_t pieces_ = 0;  // of main threads' data that came: progress too
  bool finish_told_ = false, fault_told_ = false;
  int asked_ = 0;                           // the signal that asks the job to stop in order
  Clock::time_point grace_until_{};         // then
  int signal_ = 0;                          // that ends this process
  std::optional<Clock::time_point> known_;  // since when this process knows of a fault
  Clock::time_point stopped_at_{}, end_at_{};
  std::optional<Fault> cause_;
  Beat last_beat_;  // what it was doing when it was stopped, or knew of a fault itself
  Clock::time_point looked_{};
  Clock::duration away_{};    // for how long this process was stopped, last
  Clock::time_point back_{};  // since when it goes on
  bool answered_ = false, error_told_ = false, reported_ = false, end_heard_ = false;
  bool stopped_ = false, finished_ = false, ended_ = false;
  // When steps begin here, for those who ask.
  int step_ = 0;
  Clock::time_point step_began_{};
  double step_seconds_ = 0;
};

}  // namespace contraflow
