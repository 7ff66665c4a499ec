#include "tools/contraflow-run/children.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/launch/control.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

// What a process does within Control::kStopBound it may end a little later.
constexpr milliseconds kMargin{500};
constexpr milliseconds kStop = Control::kStopBound + kMargin;

}  // namespace

Children::Children(milliseconds grace) : grace_(grace) {
  sigemptyset(&waited_);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    sigaddset(&waited_, signal);
  }
  std::signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &waited_, &before_);
}

void Children::Clear() {
  children_.clear();
  first_.reset();
  patience_ = Clock::time_point::max();
}

void Children::Start(std::vector<std::string> words) {
  std::error_code error;
  words.insert(words.begin(), std::filesystem::read_symlink("/proc/self/exe", error));
  if (error) throw Error("/proc/self/exe: " + error.message());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) {
    throw Error("a process cannot be started: " + std::generic_category().message(errno));
  }
  if (pid > 0) {
    children_.push_back({.pid = pid});
    return;
  }
  // Only what may be called between fork and exec. Its end must not wait for anything.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitLost);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  execv(arguments[0], arguments.data());
  constexpr std::string_view kText = "contraflow-run: error: cannot start itself again\n";
  static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
  _exit(kExitInput);
}

/// Waits for one, at most so long, and passes it to those that have not got it already: a key of
/// the terminal goes to all that run there.
void Children::AwaitSignal(milliseconds most) {
  const timespec time = {0, most.count() * 1'000'000};
  siginfo_t signal = {};
  if (sigtimedwait(&waited_, &signal, &time) <= 0 || signal.si_signo == SIGCHLD) return;
  if (asked_ == 0) asked_ = signal.si_signo;
  const milliseconds grace = signal.si_signo == SIGINT ? milliseconds(0) : grace_;
  patience_ = std::min(patience_, Clock::now() + grace + kStop);
  if (signal.si_code == SI_KERNEL) return;
  for (const Child& child : children_) {
    if (!child.ended) kill(child.pid, signal.si_signo);
  }
}

void Children::Reap() {
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    int status = 0;
    if (child.ended || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.ended = true;
    child.when = Clock::now();
    child.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    child.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (first_ || (child.signal == 0 && child.code == 0)) continue;
    first_ = i;
    patience_ = std::min(patience_, Clock::now() + (asked_ == 0 ? 0 : 1) * grace_ + kStop);
  }
}

ChildrenEnding Children::Wait() {
  while (!std::ranges::all_of(children_, &Child::ended)) {
    const auto left = std::chrono::duration_cast<milliseconds>(patience_ - Clock::now());
    AwaitSignal(std::clamp(left, milliseconds(1), milliseconds(999)));
    Reap();
    if (Clock::now() < patience_) continue;
    for (Child& child : children_) {
      if (child.ended) continue;
      child.killed = true;
      kill(child.pid, SIGKILL);
    }
    patience_ = Clock::time_point::max();
  }
  return Judge();
}

ChildrenEnding Children::Judge() const {
  if (!first_) return {};
  const Child* lost = &children_[*first_];
  // Who sees the connection of a killed process close may end even before that one has.
  const auto early = std::ranges::find_if(children_, [&](const Child& child) {
    return child.signal != 0 && !child.killed && child.when - lost->when < kMargin;
  });
  if (early != children_.end()) lost = &*early;
  const auto stopped = [](const Child& child) { return child.code == kExitStopped; };
  if (asked_ != 0 && std::ranges::any_of(children_, stopped)) return {.code = kExitStopped};
  if (lost->signal == 0 && lost->code != kExitLost) return {.code = lost->code};
  if (lost->signal == 0) {
    // All that ended of their own accord say that another was lost: it is who did not.
    const auto other =
        std::ranges::find_if(children_, [](const Child& child) { return child.signal != 0; });
    if (other == children_.end()) return {.code = kExitLost, .lost = true};
    lost = &*other;
  }
  return {.code = kExitLost,
          .lost = true,
          .process = static_cast<int>(lost - children_.data()),
          .how = lost->killed ? "hung"
                              : "was ended by signal " + std::to_string(lost->signal) + " (" +
                                    strsignal(lost->signal) + ")"};
}

void Children::Pause() {
  const Clock::time_point end = Clock::now() + kStop;
  while (asked_ == 0 && Clock::now() < end) AwaitSignal(milliseconds(100));
}

void Children::EndAsAsked() {
  RemoveUnfinished();
  std::signal(asked_, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  kill(getpid(), asked_);
}

}  // namespace contraflow
