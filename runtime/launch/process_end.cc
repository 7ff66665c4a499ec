#include "runtime/launch/process_end.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "compiler/plan/error.h"

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

}  // namespace contraflow
