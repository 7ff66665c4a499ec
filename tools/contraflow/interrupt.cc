#include "tools/contraflow/interrupt.h"

#include <csignal>

namespace contraflow {
namespace {

// A handler can reach nothing but globals, and of them lock-free atomics only.
std::atomic<bool> stop_now{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void Stop(int) { stop_now.store(true); }

}  // namespace

Interrupt::Interrupt() {
  stop_now.store(false);
  struct sigaction before = {};
  // A process that is to ignore it (in the background of a shell without jobs) goes on doing so.
  if (sigaction(SIGINT, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  struct sigaction once = {};
  once.sa_handler = Stop;
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&once.sa_mask);
  installed_ = sigaction(SIGINT, &once, nullptr) == 0;
}

Interrupt::~Interrupt() {
  if (installed_) std::signal(SIGINT, SIG_DFL);
}

const std::atomic<bool>& Interrupt::stop() { return stop_now; }

}  // namespace contraflow
