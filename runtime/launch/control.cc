#include "runtime/launch/control.h"

#include <signal.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/control_thread.h"

namespace contraflow {
namespace {

enum Operation : uint8_t { kGather, kBroadcast, kBarrier };

constexpr size_t kMaxBytes = size_t{1} << 30;

Control::Options Filled(Control::Options options) {
  if (!options.name) options.name = [](int process) { return "rank " + std::to_string(process); };
  if (!options.describe) {
    options.describe = [](const Progress::Snapshot& at) {
      return "step " + std::to_string(at.step) + ", instruction " + std::to_string(at.index);
    };
  }
  if (!options.print) options.print = PrintReport;
  return options;
}

/// Signals are the main thread's, but for the two that stop the job: those may come at any.
class SignalMask {
 public:
  SignalMask() {
    sigset_t set;
    ::sigfillset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
      ::sigdelset(&set, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &set, &old_);
  }
  SignalMask(const SignalMask&) = delete;
  ~SignalMask() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

 private:
  sigset_t old_;
};

}  // namespace

struct Control::State {
  State(Membership membership, const Progress& progress, Options options)
      : rank(membership.rank),
        size(membership.size),
        prefix(options.prefix),
        print(options.print),
        waiting(options.waiting),
        exit(options.exit) {
    CF_ASSERT(size > 0 && rank >= 0 && rank < size);
    CF_ASSERT(membership.watch.size() == static_cast<size_t>(size));
    desk.incoming.resize(static_cast<size_t>(size));
    desk.bell = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!desk.bell) {
      throw Error(std::string("cannot watch over the job: ") + std::strerror(errno) +
                  "; raise the limit of open files (ulimit -n)");
    }
    work.emplace(std::move(membership), progress, std::move(options), desk);
    try {
      const SignalMask mask;
      thread = std::thread([this] { work->Run(); });
    } catch (const std::system_error& error) {
      throw Error(std::string("cannot start a thread to watch over the job: ") + error.what() +
                  "; raise the limit of processes (ulimit -u)");
    }
  }

  /// Everybody's bytes go to rank 0, and, once all have come, its own to everybody. On rank 0 what
  /// came, by rank; elsewhere what came from rank 0, alone.
  std::vector<std::string> Exchange(Operation operation, std::string_view up,
                                    std::string_view down);
  std::string Await(std::unique_lock<std::mutex>& lock, int from, Operation operation);
  void Post(int to, Operation operation, std::string_view bytes) {
    desk.outgoing.push_back({to, operation, std::string(bytes)});
  }

  const int rank, size;
  const std::string prefix;
  const std::function<void(const std::string&)> print;
  const std::function<void(int)> waiting;
  const std::function<void(int)> exit;
  ControlDesk desk;
  std::optional<ControlThread> work;
  std::thread thread;
};

std::string Control::State::Await(std::unique_lock<std::mutex>& lock, int from,
                                  Operation operation) {
  std::optional<ControlDesk::Parcel>& place = desk.incoming[static_cast<size_t>(from)];
  const auto ready = [&] { return place || desk.stopped; };
  if (!ready() && waiting) waiting(from);
  desk.changed.wait(lock, ready);
  if (waiting && !desk.stopped) waiting(-1);
  if (desk.stopped) throw Aborted();
  CF_ASSERT(place->operation == operation);
  std::string bytes = std::move(place->bytes);
  place.reset();
  return bytes;
}

std::vector<std::string> Control::State::Exchange(Operation operation, std::string_view up,
                                                  std::string_view down) {
  if (up.size() > kMaxBytes || down.size() > kMaxBytes) {
    throw Error("processes cannot tell each other " + std::to_string(up.size() + down.size()) +
                " bytes at once; the limit is 1 GiB");
  }
  std::vector<std::string> received;
  std::unique_lock lock(desk.mutex);
  if (desk.stopped) throw Aborted();
  CF_ASSERT(!desk.finish);
  if (rank != 0) {
    Post(0, operation, up);
    desk.Ring();
    received.push_back(Await(lock, 0, operation));
    return received;
  }
  received.emplace_back(up);
  for (int from = 1; from < size; ++from) received.push_back(Await(lock, from, operation));
  for (int to = 1; to < size; ++to) Post(to, operation, down);
  desk.Ring();
  return received;
}

Control::Control(Membership membership, const Progress& progress, Options options)
    : state_(std::make_unique<State>(std::move(membership), progress, Filled(std::move(options)))) {
}

Control::~Control() {
  {
    const std::lock_guard lock(state_->desk.mutex);
    state_->desk.leave = true;
  }
  state_->desk.Ring();
  state_->thread.join();
}

int Control::rank() const { return state_->rank; }
int Control::size() const { return state_->size; }

void Control::OnStop(std::function<void()> wake) {
  ControlDesk& desk = state_->desk;
  const std::lock_guard wake_lock(desk.wake_mutex);
  bool stopped = false;
  {
    const std::lock_guard lock(desk.mutex);
    stopped = desk.stopped;
  }
  // If it stops from now on, the control thread waits for this lock, and calls the new one.
  desk.wake = nullptr;
  if (!stopped) {
    desk.wake = std::move(wake);
  } else if (wake) {
    wake();
  }
}

std::vector<std::string> Control::Gather(std::string_view bytes) {
  std::vector<std::string> received = state_->Exchange(kGather, bytes, "");
  if (state_->rank != 0) received.clear();
  return received;
}

std::string Control::Broadcast(std::string_view bytes) {
  if (state_->rank != 0) return state_->Exchange(kBroadcast, "", "").front();
  state_->Exchange(kBroadcast, "", bytes);
  return std::string(bytes);
}

void Control::Barrier() { state_->Exchange(kBarrier, "", ""); }

void Control::Fail(FaultKind kind, const std::string& what, int code) {
  ControlDesk& desk = state_->desk;
  std::unique_lock lock(desk.mutex);
  if (desk.finished) {
    // Nobody watches any more: what happens now is this process's own.
    lock.unlock();
    if (!what.empty()) state_->print(state_->prefix + what + "\n");
    if (!state_->exit) EndProcess(code == 0 ? 1 : code, 0);
    return state_->exit(code == 0 ? 1 : code);
  }
  if (!desk.failing) {
    desk.failing = true;
    desk.code = code;
    if (!what.empty()) desk.failed = Fault{kind, state_->rank, -1, false, what};
  }
  desk.Ring();
  desk.changed.wait(lock, [&] { return desk.ended; });
}

void Control::Finish() {
  ControlDesk& desk = state_->desk;
  std::unique_lock lock(desk.mutex);
  desk.finish = true;
  desk.Ring();
  desk.changed.wait(lock, [&] { return desk.finished || desk.stopped; });
  if (!desk.finished) throw Aborted();
}

}  // namespace contraflow
