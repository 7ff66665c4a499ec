// One mutex guards all. It is held during system calls, which never wait: so once Abort has
// returned, nobody touches the memory of the caller any more.

#include "runtime/transport/tcp_wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/transport/tcp_traffic.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kPause{20};
/// How long the last bytes may take to leave.
constexpr std::chrono::milliseconds kFlush{1'000};

/// A thread that leaves signals to others.
std::thread StartQuietly(const std::function<void()>& serve) {
  sigset_t others, before;
  sigfillset(&others);
  // But for its own faults, which whoever wants to know about them must see.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&others, fault);
  pthread_sigmask(SIG_BLOCK, &others, &before);
  std::thread thread;
  std::error_code failure;
  try {
    thread = std::thread(serve);
  } catch (const std::system_error& error) {
    failure = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) {
    throw Error("cannot start a thread for the connections between processes: " +
                failure.message() + "; allow this user more threads (ulimit -u)");
  }
  return thread;
}

Socket MakeEvent() {
  Socket event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) {
    throw Error("cannot wait for connections: " + std::generic_category().message(errno) +
                "; allow this process more open files (ulimit -n)");
  }
  return event;
}

}  // namespace

struct TcpWire::State {
  State(int self, std::vector<Socket> connections, std::function<std::string(int)> name,
        std::chrono::milliseconds grace)
      : wake(MakeEvent()),
        traffic(self, std::move(connections), std::move(name), grace),
        thread(StartQuietly([this] { Run(); })) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      closing = Clock::now() + kFlush;
    }
    WakeThread();
    thread.join();
  }

  void WakeThread() const {
    const uint64_t one = 1;
    // Where it is full the thread is awake.
    [[maybe_unused]] const ssize_t count = write(wake.fd(), &one, sizeof one);
  }

  /// Writes at once what can be; the thread writes the rest.
  void Write(int process) {
    traffic.Serve(process, false);
    if (traffic.writes(process)) WakeThread();
  }

  void RequireHope() const {
    if (aborted) throw Aborted();
    traffic.RequireHope();
  }

  /// What to wait for on each connection. Returns whether something is to be written.
  bool Prepare(std::vector<pollfd>* polled) const {
    bool writes = false;
    for (int process = 0; process < traffic.processes(); ++process) {
      const bool out = !aborted && traffic.writes(process);
      writes = writes || out;
      (*polled)[static_cast<size_t>(process)] = {
          aborted ? -1 : traffic.fd(process), static_cast<int16_t>(out ? POLLIN | POLLOUT : POLLIN),
          0};
    }
    polled->back() = {wake.fd(), POLLIN, 0};
    return writes;
  }

  void Run() {
    std::vector<pollfd> polled(static_cast<size_t>(traffic.processes()) + 1);
    for (;;) {
      int64_t wait = -1;
      {
        const std::lock_guard lock(mutex);
        const bool writes = Prepare(&polled);
        if (closing) {
          wait = std::chrono::ceil<std::chrono::milliseconds>(*closing - Clock::now()).count();
          if (!writes || wait <= 0) return;
        }
      }
      if (poll(polled.data(), static_cast<nfds_t>(polled.size()), static_cast<int>(wait)) <= 0) {
        continue;
      }
      if (polled.back().revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake.fd(), &count, sizeof count);
      }
      for (int process = 0; process < traffic.processes(); ++process) {
        const int events = polled[static_cast<size_t>(process)].revents;
        if (events != 0) Serve(process, (events & ~POLLOUT) != 0);
      }
    }
  }

  /// The mutex is free between the turns of two processes.
  void Serve(int process, bool reads) {
    const std::lock_guard lock(mutex);
    if (aborted) return;
    const uint64_t before = traffic.changes();
    traffic.Serve(process, reads);
    if (traffic.changes() != before) changed.notify_one();
  }

  const Socket wake;  // ends the poll of the thread
  std::mutex mutex;   // guards all that follows
  std::condition_variable changed;
  TcpTraffic traffic;
  uint64_t seen = 0;  // of its changes, when the caller last paused
  bool aborted = false;
  std::optional<Clock::time_point> closing;  // until when the thread may still write
  std::thread thread;
};

TcpWire::TcpWire(int self, std::vector<Socket> connections, std::function<std::string(int)> name,
                 std::chrono::milliseconds grace)
    : state_(std::make_unique<State>(self, std::move(connections), std::move(name), grace)) {}

TcpWire::~TcpWire() = default;

int TcpWire::processes() const { return state_->traffic.processes(); }

int TcpWire::self() const { return state_->traffic.self(); }

int TcpWire::Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes,
                  bool) {
  const std::lock_guard lock(state_->mutex);
  if (state_->aborted) throw Aborted();
  const int ticket = state_->traffic.Send(channel, to, label, bytes);
  state_->Write(to);
  return ticket;
}

int TcpWire::Receive(Channel channel, int from, std::span<std::byte> bytes) {
  const std::lock_guard lock(state_->mutex);
  if (state_->aborted) throw Aborted();
  const int ticket = state_->traffic.Receive(channel, from, bytes);
  state_->Write(from);
  return ticket;
}

Wire::Status TcpWire::Test(int ticket) {
  const std::lock_guard lock(state_->mutex);
  if (state_->aborted) throw Aborted();
  return state_->traffic.Test(ticket);
}

void TcpWire::Poll() {
  const std::lock_guard lock(state_->mutex);
  state_->RequireHope();
}

void TcpWire::Pause() {
  std::unique_lock lock(state_->mutex);
  state_->RequireHope();
  // What was done since the last pause the caller may have missed.
  state_->changed.wait_for(
      lock, kPause, [&] { return state_->traffic.changes() != state_->seen || state_->aborted; });
  state_->seen = state_->traffic.changes();
  state_->RequireHope();
}

void TcpWire::Abort() {
  const std::lock_guard lock(state_->mutex);
  state_->aborted = true;
  state_->changed.notify_one();
  state_->WakeThread();
}

}  // namespace contraflow
