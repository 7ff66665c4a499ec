#include "tools/report/progress.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include "compiler/plan/text.h"

namespace contraflow {

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Show(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::Say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::Show() {
  std::unique_lock lock(mutex_);
  bool shown = false;
  for (int seconds = 1; !ended_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; });
       ++seconds) {
    std::fprintf(stderr, "\r\033[K%s: %d s", what_.c_str(), seconds);
    shown = true;
  }
  if (shown) std::fputs("\r\033[K", stderr);
}

namespace {

// A handler can reach nothing but globals, and of them lock-free atomics only.
std::atomic<bool> stop_now{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void Stop(int) { stop_now.store(true); }

}  // namespace

Interrupt::Interrupt() {
  stop_now.store(false);
  // A process that is to ignore it (in the background of a shell without jobs) goes on doing so.
  if (sigaction(SIGINT, nullptr, &before_) != 0 || before_.sa_handler == SIG_IGN) return;
  struct sigaction once = {};
  once.sa_handler = Stop;
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&once.sa_mask);
  installed_ = sigaction(SIGINT, &once, nullptr) == 0;
}

Interrupt::~Interrupt() {
  if (installed_) sigaction(SIGINT, &before_, nullptr);
}

const std::atomic<bool>& Interrupt::stop() { return stop_now; }

namespace {

/// "1.20 % above its bound"
std::string AboveBound(Time makespan, Time bound) {
  if (bound == 0) return "at its bound";
  return FormatPercent(static_cast<double>(makespan - bound) / static_cast<double>(bound)) +
         " above its bound";
}

}  // namespace

SearchControl WatchSearch(const std::atomic<bool>& stop, Progress* progress, Unit unit) {
  SearchControl control = {.stop = &stop};
  if (progress == nullptr) return control;
  control.report = [=](const SearchState& state) {
    std::string text = "auto: " + std::string(state.phase);
    if (state.makespan > 0) {
      text += ", " + FormatWithUnit(state.makespan, unit) + ", " +
              AboveBound(state.makespan, state.bound);
    }
    progress->Say(text + ", " + FormatPercent(state.spent) +
                  " of the budget (Ctrl-C: take the best so far)");
  };
  return control;
}

std::string DescribeInterrupt(const Plan& plan) {
  if (!plan.provenance || !plan.provenance->interrupted) return "";
  return "interrupted: makespan " + FormatWithUnit(plan.provenance->makespan, plan.costs->unit) +
         " is the best so far, " + AboveBound(plan.provenance->makespan, plan.provenance->bound);
}

}  // namespace contraflow
