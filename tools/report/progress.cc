#include "tools/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <utility>

#include "compiler/plan/text.h"
#include "schedules/search/search_control.h"
#include "tools/cli/terminal.h"

namespace contraflow {

ProgressLine::ProgressLine(std::string what) : what_(std::move(what)) {
  if (SaysWhatWasDone()) thread_ = std::thread([this] { Show(); });
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void ProgressLine::Say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void ProgressLine::Show() {
  std::unique_lock lock(mutex_);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  bool shown = false;
  for (int seconds = 1; !ended_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; });
       ++seconds) {
    const std::string time = ": " + std::to_string(seconds) + " s";
    std::string what = Legible(what_);
    // On a terminal, one line only: a later line could not wipe one that wrapped into the next.
    if (const std::optional<int> width = TerminalWidth(STDERR_FILENO)) {
      const auto most = static_cast<size_t>(*width) - 1 - time.size();
      if (what.size() > most) what = what.substr(0, most - 3) + "...";
    }
    std::fprintf(stderr, terminal ? "\r\033[K%s%s" : "%s%s\n", what.c_str(), time.c_str());
    shown = terminal;
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

/// Share of its budget beyond which a search took much longer.
constexpr double kOverspent = 1.5;

/// "1.20 % above its bound"
std::string AboveBound(Time makespan, Time bound) {
  if (bound == 0) return "at its bound";
  return FormatPercent(static_cast<double>(makespan - bound) / static_cast<double>(bound)) +
         " above its bound";
}

}  // namespace

SearchControl WatchSearch(const std::atomic<bool>& stop, ProgressLine* progress, Unit unit) {
  SearchControl control = {.stop = &stop};
  if (progress == nullptr) return control;
  control.report = [=](const SearchState& state) {
    const long percent = std::lround(100 * std::clamp(state.spent, 0.0, 1.0));
    std::string text = "auto: " + std::string(state.phase) + ", " + std::to_string(percent) + " %";
    if (state.makespan > 0) {
      text += ", best " + FormatWithUnit(state.makespan, unit) + " (Ctrl-C takes it)";
    }
    progress->Say(text);
  };
  return control;
}

std::string OverspentNote(double spent, int64_t budget) {
  if (spent <= kOverspent * static_cast<double>(budget)) return "";
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2g s", spent * 1e-9);
  return std::string("contraflow: note: the least that auto does here takes about ") + seconds +
         ", more than --budget";
}

std::string DescribeInterrupt(const Plan& plan) {
  if (!plan.provenance || !plan.provenance->interrupted) return "";
  return "interrupted: makespan " + FormatWithUnit(plan.provenance->makespan, plan.costs->unit) +
         " is the best so far, " + AboveBound(plan.provenance->makespan, plan.provenance->bound);
}

}  // namespace contraflow
