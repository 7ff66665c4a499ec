#include "runtime/launch/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

std::atomic<int> caught = 0;
std::atomic<bool> catching = false;
static_assert(std::atomic<int>::is_always_lock_free);
// Made once and kept: a handler that still runs on another thread may write to it at any time.
int signal_event = -1;

extern "C" void NoteSignal(int signal) {
  const int error = errno;
  const uint64_t one = 1;
  caught = signal;
  [[maybe_unused]] const ssize_t count = ::write(signal_event, &one, sizeof one);
  errno = error;
}

}  // namespace

SignalCatcher::SignalCatcher() {
  CF_ASSERT(!catching.exchange(true));
  if (signal_event < 0) signal_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signal_event < 0) {
    catching = false;
    throw Error(std::string("cannot watch for signals: ") + std::strerror(errno) +
                "; raise the limit of open files (ulimit -n)");
  }
  caught = 0;
  struct sigaction action {};
  action.sa_handler = NoteSignal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    ::sigaction(kCaught[i], nullptr, &old_[i]);
    if (old_[i].sa_handler != SIG_IGN) ::sigaction(kCaught[i], &action, nullptr);
  }
}

SignalCatcher::~SignalCatcher() {
  for (size_t i = 0; i < std::size(kCaught); ++i) ::sigaction(kCaught[i], &old_[i], nullptr);
  catching = false;
}

int SignalCatcher::fd() const { return signal_event; }

int SignalCatcher::Take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(signal_event, &count, sizeof count);
  return caught.exchange(0);
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
    // A reader that does not read must not delay the end. A writable pipe takes PIPE_BUF bytes.
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&room, 1, 500) == 0) return;
    const size_t piece = std::min<size_t>(PIPE_BUF, report.size() - at);
    const ssize_t count = ::write(STDERR_FILENO, report.data() + at, piece);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return;
    at += static_cast<size_t>(count);
  }
}

}  // namespace contraflow
