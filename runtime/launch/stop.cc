// The times of a stop, as shares of its bound (3 s):
//
//   0 s      a process knows of a fault and tells process 0
//   0.15 s   process 0 has waited for a fault before it, and says STOP
//   0.55 s   a main thread that has not come back by now is described as it stands
//   0.75 s   a process that has not answered is described by its last beat; report, END, exit
//   2.7 s    a process that was not told END ends itself
//   3 s      the kernel ends it
//
// mpirun sends SIGTERM to all that live when one process dies and SIGKILL one second later: by then
// the report must be out.

#include <algorithm>
#include <iterator>
#include <utility>

#include "compiler/plan/text.h"
#include "runtime/core/seconds.h"
#include "runtime/launch/watch.h"

namespace contraflow {

/// Begins the stop of the job, or its end.
void Watch::Decide() {
  if (faults_.empty()) {
    const auto finished = [](const Member& member) { return member.finished; };
    if (rank_ == 0 && AllWatched(finished)) BeginFinishing();
    return;
  }
  const size_t cause = CauseOf(faults_);
  if (!Leads() || (MayFollow(faults_, cause) && now_ < *known_ + options_.bound / 20)) return;
  Stop(Fault(faults_[cause]));
}

/// Gathers the last words.
void Watch::CollectReports() {
  const bool late = now_ >= stopped_at_ + options_.bound * 2 / 15;
  if (!At(rank_).answered && (failing_ || leave_ || late)) SendReport();
  if (!Leads()) return;
  const bool all = AllWatched([](const Member& member) { return member.answered || member.lost; });
  if (all || now_ >= stopped_at_ + options_.bound / 5) Report();
}

/// Ends this process within the bound.
void Watch::Enforce() {
  if (now_ < *known_ + options_.bound * 9 / 10) return;
  // Process 0 has not said that the report is out.
  if (phase_ != Phase::kEnding) {
    if (!At(rank_).answered) SendReport();
    Report();
  }
  End();
}

void Watch::Suspect() {
  if (known_) return;
  known_ = Clock::now();
  NotePosition();
  if (!options_.exit) backstop_.emplace(options_.bound);
}

/// Notes the position of this process, unless it has given up.
void Watch::NotePosition() {
  if (failing_) return;
  looked_ = Clock::now();
  last_beat_ = Look();
}

void Watch::Fail(std::optional<Fault> fault, int code) {
  if (failing_) return;
  code_ = code;
  failed_ = std::move(fault);
  if (failed_ && phase_ == Phase::kWatching) Tell(*failed_);
  if (failed_ && phase_ == Phase::kStopped) SendReport();
  failing_ = true;
}

void Watch::Tell(const Fault& fault) {
  Add(fault);
  if (phase_ != Phase::kWatching && phase_ != Phase::kStopped) return;
  Suspect();
  SendTo(0, kFault, FaultBytes(fault));
}

void Watch::Stop(const Fault& cause) {
  Suspect();
  Add(cause);
  cause_ = cause;
  stopped_at_ = now_;
  phase_ = Phase::kStopped;
  NotePosition();
  if (Leads()) SendToAll(kStop, FaultBytes(cause));
  links_.changed().notify_all();
}

void Watch::SendReport() {
  Beat beat = last_beat_;
  beat.age_ms += static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - looked_).count());
  NoteBeat(rank_, beat);
  At(rank_).answered = true;
  std::string bytes = BytesOf(beat);
  if (failed_) {
    Add(*failed_);
    bytes += FaultBytes(*failed_);
  }
  SendTo(0, kWords, bytes);
}

void Watch::Report() {
  if (!cause_) cause_ = faults_[CauseOf(faults_)];
  if (cause_->kind == FaultKind::kLost && away_ > Clock::duration::zero() &&
      *known_ < back_ + std::chrono::seconds(1)) {
    // The others reported this process and ended while it was suspended.
    options_.print(options_.prefix + options_.name(rank_) + " was itself stopped for " +
                   SecondsText(std::chrono::duration<double>(away_).count()) +
                   ", and the job ended without it\n");
  } else if (rank_ != 0 && cause_->kind == FaultKind::kLost) {
    // The others that have lost process 0 print such a line too.
    options_.print(PlainText(LossOfLeader(options_.prefix, options_.name, cause_->text, rank_,
                                          Standings(now_)[static_cast<size_t>(rank_)])));
  } else {
    Findings findings{*cause_, {}, Standings(now_)};
    std::copy_if(faults_.begin(), faults_.end(), std::back_inserter(findings.later),
                 [&](const Fault& fault) { return fault != *cause_; });
    options_.print(PlainText(FaultReport(options_.prefix, options_.name, findings)));
  }
  SendToAll(kEnd);
  phase_ = Phase::kEnding;
  end_at_ = Clock::now() + options_.bound / 15;
}

void Watch::End() {
  if (!cause_ && !faults_.empty()) cause_ = faults_[CauseOf(faults_)];
  const FaultKind kind = cause_ ? cause_->kind : FaultKind::kError;
  const bool comes_back =
      kind == FaultKind::kLost || kind == FaultKind::kTimeout || kind == FaultKind::kSignal;
  int code = failed_ && code_ != 0 ? code_ : 1;
  if (comes_back && code == 1) code = Control::kStoppedCode;
  if (signal_ != 0) code = 128 + signal_;
  if (!options_.exit) EndProcess(code, signal_);
  options_.exit(code);
  // Nobody waits for the connections of a process that has ended.
  for (Link& link : links_.all()) link.EndSending();
  Over(Phase::kEnded);
}

}  // namespace contraflow
