#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/control_thread.h"

namespace contraflow {
namespace {

constexpr int kCaught[] = {SIGTERM, SIGINT};

// Made once and kept: a handler that still runs on another thread may write to it at any time.
int signal_pipe[2] = {-1, -1};
std::atomic<bool> catching = false;

void MakePipe() {
  if (signal_pipe[0] >= 0) return;
  if (::pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Error(std::string("cannot watch for signals: ") + std::strerror(errno) +
                "; raise the limit of open files (ulimit -n)");
  }
}

extern "C" void WriteSignal(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t count = ::write(signal_pipe[1], &byte, 1);
  errno = error;
}

}  // namespace

struct SignalCatcher::Old {
  struct sigaction actions[std::size(kCaught)];
};

SignalCatcher::SignalCatcher() : old_(nullptr) {
  CF_ASSERT(!catching.exchange(true));
  try {
    MakePipe();
    old_ = new Old{};
  } catch (...) {
    catching = false;
    throw;
  }
  struct sigaction action {};
  action.sa_handler = WriteSignal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    ::sigaction(kCaught[i], nullptr, &old_->actions[i]);
    if (old_->actions[i].sa_handler != SIG_IGN) ::sigaction(kCaught[i], &action, nullptr);
  }
}

SignalCatcher::~SignalCatcher() {
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    ::sigaction(kCaught[i], &old_->actions[i], nullptr);
  }
  while (Take() != 0) {
  }
  delete old_;
  catching = false;
}

int SignalCatcher::fd() const { return signal_pipe[0]; }

int SignalCatcher::Take() {
  unsigned char byte = 0;
  return ::read(signal_pipe[0], &byte, 1) == 1 ? byte : 0;
}

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

Backstop::Backstop(std::chrono::milliseconds after) {
  struct sigevent event {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;
  timer_ = timer;
  struct itimerspec when {};
  when.it_value.tv_sec = after.count() / 1000;
  when.it_value.tv_nsec = after.count() % 1000 * 1'000'000 + 1;  // 0 would mean never.
  ::timer_settime(timer, 0, &when, nullptr);
}

Backstop::~Backstop() {
  if (timer_) ::timer_delete(*timer_);
}

void EndProcess(int code, int signal) {
  std::fflush(nullptr);
  if (signal != 0) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    ::raise(signal);
    code = 128 + signal;
  }
  ::_exit(code);
}

void PrintReport(const std::string& report) {
  for (size_t at = 0; at < report.size();) {
    const ssize_t count = ::write(STDERR_FILENO, report.data() + at, report.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    at += static_cast<size_t>(count);
  }
}

// The times of a stop, as shares of its bound (3 s):
//
//   0 s      a process knows of a fault and tells both hubs
//   0.15 s   the leader has waited for what the fault may follow from, and says STOP
//   0.55 s   a main thread that has not come back by now is described as it stands
//   0.75 s   who has not answered by now is described as it was heard of last; report, END, exit
//   1 s      rank 1 says STOP if rank 0 has not
//   2.7 s    a process that nobody told END ends itself
//   3 s      the kernel ends it
//
// mpirun sends SIGTERM to all that live when one process dies and SIGKILL one second later: by then
// the report must be out.

namespace {

using Kind = ControlMessage::Kind;
using std::chrono::milliseconds;

constexpr milliseconds kEndOfJob{1000};

}  // namespace

void ControlThread::Decide() {
  const std::vector<Fault>& faults = roll_.faults();
  if (faults.empty()) {
    if (rank_ == 0 && finish_told_ && roll_.AllFinished()) {
      SendToAll(ControlMessage(Kind::kFinished));
      BeginFinishing();
    }
    return;
  }
  if (rank_ == 1 && now_ >= *known_ + options_.bound / 3) took_over_ = true;
  const size_t cause = CauseOf(faults);
  if (!Leads() || (MayFollow(faults, cause) && now_ < *known_ + options_.bound / 20)) return;
  const Fault fault = faults[cause];
  Stop(fault);
}

void ControlThread::GoOn() {
  bool failing = false, error = false;
  {
    const std::lock_guard lock(desk_.mutex);
    failing = desk_.failing || desk_.leave;
    error = desk_.failed.has_value();
  }
  const bool late = now_ >= stopped_at_ + options_.bound * 2 / 15;
  if ((!answered_ && (failing || late)) || (error && !error_told_)) SayWords();
  if (!Leads() || reported_) return;
  if ((answered_ && roll_.AllAnswered()) || now_ >= stopped_at_ + options_.bound / 5) Report();
}

void ControlThread::Enforce() {
  if (now_ < *known_ + options_.bound * 9 / 10) return;
  // Nobody has said that the report is out. Where a leader said STOP and then nothing, the other
  // hub speaks for all.
  if (!reported_ && !end_heard_ && (rank_ < kHubs || !stop_heard_)) {
    if (!answered_) SayWords();
    Report();
  }
  End();
}

bool ControlThread::Leads() const {
  if (rank_ == 0 || took_over_) return true;
  for (int hub = 0; hub < std::min(kHubs, rank_); ++hub) {
    const ControlLink* const link = Link(hub);
    if (link != nullptr && link->open()) return false;
  }
  return true;
}

Fault ControlThread::Own(FaultKind kind, std::string text) const {
  return {kind, rank_, -1, false, std::move(text)};
}

void ControlThread::Suspect() {
  if (known_) return;
  known_ = looked_ = now_;
  last_beat_ = Look();
  if (!options_.exit) backstop_.emplace(options_.bound);
}

/// It may have gone on since it knew of the fault; unless it has given up meanwhile.
void ControlThread::LookAgain() {
  {
    const std::lock_guard lock(desk_.mutex);
    if (desk_.failing) return;
  }
  looked_ = now_;
  last_beat_ = Look();
}

void ControlThread::Tell(const Fault& fault) {
  roll_.Add(fault);
  if (phase_ != Phase::kWatching) return;
  Suspect();
  SendToHubs(ControlMessage(Kind::kFault, fault));
}

void ControlThread::Stop(const Fault& cause) {
  Suspect();
  roll_.Add(cause);
  cause_ = cause;
  stopped_at_ = now_;
  phase_ = Phase::kStopped;
  LookAgain();
  if (Leads()) SendToAll(ControlMessage(Kind::kStop, cause));
  {
    const std::lock_guard lock(desk_.mutex);
    desk_.stopped = true;
    desk_.changed.notify_all();
  }
  const std::lock_guard lock(desk_.wake_mutex);
  if (const auto wake = std::exchange(desk_.wake, nullptr)) wake();
}

void ControlThread::SayWords() {
  ControlMessage message(Kind::kWords);
  message.beat = last_beat_;
  message.beat.age_ms +=
      static_cast<uint32_t>(std::chrono::duration_cast<milliseconds>(now_ - looked_).count());
  {
    const std::lock_guard lock(desk_.mutex);
    message.has_fault = desk_.failed.has_value();
    if (message.has_fault) message.fault = *desk_.failed;
  }
  answered_ = true;
  error_told_ = message.has_fault;
  roll_.Answer(rank_, message.beat, now_);
  if (message.has_fault) roll_.Add(message.fault);
  SendToHubs(message);
}

void ControlThread::Report() {
  reported_ = true;
  if (!cause_) cause_ = roll_.faults()[CauseOf(roll_.faults())];
  if (cause_->kind == FaultKind::kLost && away_ > Clock::duration::zero()) {
    // The others have reported this one, and gone.
    options_.print(options_.prefix + options_.name(rank_) + " was itself stopped for " +
                   SecondsText(std::chrono::duration<double>(away_).count()) +
                   ", and the job ended without it\n");
  } else {
    options_.print(FaultReport(options_.prefix, options_.name, roll_.Find(*cause_, now_)));
  }
  SendToAll(ControlMessage(Kind::kEnd));
  phase_ = Phase::kEnding;
  end_at_ = Clock::now() + options_.bound / 15;
}

void ControlThread::End() {
  // Who has not heard from the first hub hears from the second.
  if (!reported_ && rank_ < kHubs) SendToAll(ControlMessage(Kind::kEnd));
  int code = 1;
  {
    const std::lock_guard lock(desk_.mutex);
    desk_.stopped = true;
    if (desk_.failed && desk_.code != 0) code = desk_.code;
    desk_.changed.notify_all();
  }
  if (signal_ != 0) code = 128 + signal_;
  if (!options_.exit) EndProcess(code, signal_);
  options_.exit(code);
  phase_ = Phase::kOver;
  const std::lock_guard lock(desk_.mutex);
  desk_.ended = true;
  desk_.changed.notify_all();
}

void ControlThread::BeginFinishing() {
  phase_ = Phase::kFinishing;
  end_at_ = now_ + kEndOfJob;
  known_.reset();
  backstop_.reset();
  for (const auto& link : links_) {
    if (link != nullptr) link->EndSending();
  }
  const std::lock_guard lock(desk_.mutex);
  desk_.finished = true;
  desk_.changed.notify_all();
}

}  // namespace contraflow
