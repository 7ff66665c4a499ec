#include "runtime/launch/control.h"

#include <mutex>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/watch.h"

namespace contraflow {
namespace {

/// The first byte of a main thread's data.
enum Operation : char { kGather = 'g', kBroadcast = 'b', kBarrier = 'w' };

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

}  // namespace

struct Control::State {
  State(Membership membership, const Progress& progress, Options given)
      : options(Filled(std::move(given))),
        rank(membership.rank),
        size(membership.size),
        links(rank, std::move(membership.links)),
        watch(links, progress, options),
        listener(std::move(membership.listener)) {
    CF_ASSERT(rank >= 0 && rank < size && links.size() == size);
    links.Start(&watch);
    if (listener == nullptr) return;
    listener->Serve([this] {
      const std::lock_guard lock(links.mutex());
      return watch.Status();
    });
  }

  ~State() {
    listener.reset();
    {
      LinkSet::Lock lock(links.mutex());
      watch.Leave();
      links.Wake();
      links.changed().wait(lock, [&] { return watch.over(); });
    }
    links.Stop();  // its thread works for the watch
  }

  /// Sends the bytes of all to rank 0, which sends `answer` of them to all. Returns the bytes by
  /// rank on rank 0, the answer elsewhere.
  template <typename Answer>
  std::vector<std::string> Collect(Operation operation, std::string_view bytes,
                                   const Answer& answer);
  std::string Await(LinkSet::Lock& lock, int from, Operation operation);
  void Post(int to, Operation operation, std::string_view bytes) {
    watch.SendData(to, char{operation} + std::string(bytes));
  }
  void Require(size_t bytes) const {
    if (bytes > kMaxBytes) {
      throw Error("processes cannot tell each other " + std::to_string(bytes) +
                  " bytes at once; the limit is 1 GiB");
    }
    if (watch.stopped()) throw Aborted();
  }

  const Options options;
  const int rank, size;
  LinkSet links;
  Watch watch;
  std::unique_ptr<Listener> listener;
};

std::string Control::State::Await(LinkSet::Lock& lock, int from, Operation operation) {
  std::deque<std::string>& incoming = watch.Incoming(from);
  const auto ready = [&] { return !incoming.empty() || watch.stopped(); };
  if (!ready() && options.waiting) options.waiting(from);
  links.changed().wait(lock, ready);
  if (options.waiting && !watch.stopped()) options.waiting(-1);
  if (watch.stopped()) throw Aborted();
  std::string bytes = std::move(incoming.front());
  incoming.pop_front();
  if (bytes.empty() || bytes.front() != operation) {
    throw Error(options.name(from) + " sent something unexpected");
  }
  return bytes.substr(1);
}

template <typename Answer>
std::vector<std::string> Control::State::Collect(Operation operation, std::string_view bytes,
                                                 const Answer& answer) {
  LinkSet::Lock lock(links.mutex());
  Require(bytes.size());
  if (rank != 0) {
    Post(0, operation, bytes);
    return {Await(lock, 0, operation)};
  }
  std::vector<std::string> received = {std::string(bytes)};
  for (int from = 1; from < size; ++from) received.push_back(Await(lock, from, operation));
  const std::string down = answer(received);
  Require(down.size());
  for (int to = 1; to < size; ++to) Post(to, operation, down);
  return received;
}

Control::Control(Membership membership, const Progress& progress, Options options)
    : state_(std::make_unique<State>(std::move(membership), progress, std::move(options))) {}

Control::~Control() = default;

int Control::rank() const { return state_->rank; }
int Control::size() const { return state_->size; }

void Control::OnStop(std::function<void()> wake) {
  State& state = *state_;
  const std::lock_guard wake_lock(state.watch.wake_mutex);
  LinkSet::Lock lock(state.links.mutex());
  // If the job stops from now on, the thread waits for this lock and calls the new one.
  state.watch.wake = std::move(wake);
  if (!state.watch.stopped()) return;
  const auto call = std::exchange(state.watch.wake, nullptr);
  lock.unlock();
  if (call) call();
}

std::vector<std::string> Control::Gather(std::string_view bytes) {
  std::vector<std::string> received =
      state_->Collect(kGather, bytes, [](const auto&) { return std::string(); });
  if (state_->rank != 0) received.clear();
  return received;
}

std::string Control::Broadcast(std::string_view bytes) {
  const std::vector<std::string> received =
      state_->Collect(kBroadcast, "", [&](const auto&) { return std::string(bytes); });
  return state_->rank == 0 ? std::string(bytes) : received.front();
}

bool Control::Barrier() {
  bool asked = false;
  {
    const std::lock_guard lock(state_->links.mutex());
    asked = state_->watch.asked();
  }
  std::string all;
  const std::vector<std::string> received =
      state_->Collect(kBarrier, asked ? "1" : "", [&](const std::vector<std::string>& said) {
        for (const std::string& one : said) all = all.empty() ? one : all;
        return all;
      });
  return !(state_->rank == 0 ? all : received.front()).empty();
}

void Control::Fail(FaultKind kind, const std::string& what, int code) {
  State& state = *state_;
  LinkSet::Lock lock(state.links.mutex());
  if (state.watch.finished()) {
    // The watch is over: an error is this process's own.
    lock.unlock();
    if (!what.empty()) state.options.print(PlainText(state.options.prefix + what + "\n"));
    if (!state.options.exit) EndProcess(code == 0 ? 1 : code, 0);
    return state.options.exit(code == 0 ? 1 : code);
  }
  std::optional<Fault> fault;
  if (!what.empty()) fault = Fault{kind, state.rank, what};
  state.watch.Fail(std::move(fault), code);
  state.links.Wake();
  state.links.changed().wait(lock, [&] { return state.watch.ended(); });
}

void Control::Finish() {
  State& state = *state_;
  LinkSet::Lock lock(state.links.mutex());
  state.watch.Finish();
  state.links.Wake();
  state.links.changed().wait(lock, [&] { return state.watch.finished() || state.watch.stopped(); });
  if (!state.watch.finished()) throw Aborted();
}

}  // namespace contraflow
