// Whoever comes second to a message copies it, from the sender's bytes into the receiver's, outside
// of the mutex: nothing is buffered, and no progress depends on a thread that is busy elsewhere.

#include "runtime/transport/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/rank_order.h"
#include "runtime/core/seconds.h"
#include "runtime/transport/tickets.h"
#include "runtime/transport/wire.h"
#include "runtime/transport/wire_transport.h"

namespace contraflow {
namespace {

class ThreadWire;

/// State that the wires of a network share.
struct ThreadHub {
  std::mutex mutex;  // guards all of it, and the wires
  std::vector<std::unique_ptr<ThreadWire>> wires;
  std::function<std::string(int)> name;
  std::chrono::milliseconds timeout{};
  Clock::time_point last_call = Clock::now();
  bool aborted = false;

  std::string WhoWaits() const;
};

class ThreadWire : public Wire {
 public:
  ThreadWire(ThreadHub& hub, int self, int processes)
      : hub_(hub), self_(self), open_(static_cast<size_t>(processes) * kChannels * 2) {}

  int processes() const override { return static_cast<int>(hub_.wires.size()); }
  int self() const override { return self_; }
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) override {
    return Begin(channel, to, {true, false, label, {}, bytes, {}, -1});
  }
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return Begin(channel, from, {false, false, {}, {}, {}, bytes, -1});
  }
  Status Test(int ticket) override {
    std::unique_lock lock(hub_.mutex);
    RequireRunning(lock);
    Entry& entry = At(ticket);
    if (!entry.done) return {};
    tickets_.Free(ticket);
    return {true, entry.label, entry.begun};
  }
  void Poll() override {
    std::unique_lock lock(hub_.mutex);
    RequireRunning(lock);
  }
  void Pause() override;
  void Waits(int process, const Instruction& at) override {
    const std::lock_guard lock(hub_.mutex);
    waits_for_ = process;
    at_ = at;
  }
  void Abort() override {
    const std::lock_guard lock(hub_.mutex);
    hub_.aborted = true;
    for (const auto& wire : hub_.wires) wire->wake_.notify_all();
  }

  std::string Waiting() const {
    std::string text = hub_.name(self_) + " waits ";
    if (waits_for_ < 0) return text + "for nobody";
    return text + "at " + ToString(at_) + " for " + hub_.name(waits_for_);
  }

 private:
  struct Entry {
    bool sends = false, done = false;
    Label label;  // of a receive, once it has met its send
    Clock::time_point begun;
    std::span<const std::byte> out;
    std::span<std::byte> in;
    int next = -1;  // in its queue, or of those that are free
  };
  struct Queue {
    int first = -1, last = -1;
  };

  Entry& At(int ticket) { return tickets_.At(ticket); }
  /// Tickets that have not met, of sends to a process or of receives from it.
  Queue& Open(Channel channel, int process, bool sends) {
    const size_t row = static_cast<size_t>(process) * kChannels + static_cast<size_t>(channel);
    return open_[row * 2 + (sends ? 1 : 0)];
  }
  int Begin(Channel channel, int peer, const Entry& entry);
  /// Throws Aborted, once nobody works on this one's memory any more.
  void RequireRunning(std::unique_lock<std::mutex>& lock) {
    if (!hub_.aborted) return;
    wake_.wait(lock, [&] { return copies_ == 0; });
    throw Aborted();
  }

  ThreadHub& hub_;
  const int self_;
  std::condition_variable wake_;
  Tickets<Entry> tickets_;
  std::vector<Queue> open_;
  uint64_t events_ = 0, seen_ = 0;
  int copies_ = 0;  // that others make of this one's memory
  int waits_for_ = -1;
  Instruction at_{};
};

std::string ThreadHub::WhoWaits() const {
  std::string text;
  for (const auto& wire : wires) text += (text.empty() ? "" : "; ") + wire->Waiting();
  return text;
}

int ThreadWire::Begin(Channel channel, int peer, const Entry& entry) {
  std::unique_lock lock(hub_.mutex);
  RequireRunning(lock);
  hub_.last_call = Clock::now();
  CF_ASSERT(peer >= 0 && peer < processes() && peer != self_);
  const int ticket = tickets_.Take(entry);
  Entry& here = At(ticket);
  here.begun = hub_.last_call;
  ThreadWire& other = *hub_.wires[static_cast<size_t>(peer)];
  Queue& met = other.Open(channel, self_, !here.sends);
  if (met.first < 0) {
    Queue& queue = Open(channel, peer, here.sends);
    (queue.first < 0 ? queue.first : At(queue.last).next) = ticket;
    queue.last = ticket;
    return ticket;
  }
  Entry& there = other.At(met.first);
  met.first = there.next;
  Entry& send = here.sends ? here : there;
  Entry& receive = here.sends ? there : here;
  receive.label = send.label;
  receive.begun = send.begun;
  if (send.out.size() == receive.in.size()) {
    // Out of the queues, and not done: nobody else touches the two.
    ++other.copies_;
    lock.unlock();
    std::copy(send.out.begin(), send.out.end(), receive.in.begin());
    lock.lock();
    --other.copies_;
  }
  here.done = there.done = true;
  ++events_;
  ++other.events_;
  other.wake_.notify_all();
  return ticket;
}

void ThreadWire::Pause() {
  std::unique_lock lock(hub_.mutex);
  RequireRunning(lock);
  while (events_ == seen_ && !hub_.aborted) {
    const Clock::time_point deadline = hub_.last_call + hub_.timeout;
    if (Clock::now() >= deadline) {
      // Nobody may begin to work on the memory of one that has given up.
      hub_.aborted = true;
      for (const auto& wire : hub_.wires) wire->wake_.notify_all();
      wake_.wait(lock, [&] { return copies_ == 0; });
      throw Error("no rank has made progress for " + SecondsText(hub_.timeout) + ": " +
                  hub_.WhoWaits() + "; verify the plan, or allow more time with `timeout`");
    }
    wake_.wait_until(lock, deadline);
  }
  seen_ = events_;
  RequireRunning(lock);
}

Plan PlanOf(int ranks, int replicas, int members) {
  CF_ASSERT(ranks > 0 && replicas > 0 && members > 0);
  Plan plan;
  plan.ranks = ranks;
  plan.data_parallel = replicas;
  plan.expert_parallel = members;
  return plan;
}

}  // namespace

struct ThreadNetwork::State {
  State(int ranks, int replicas, int members)
      : plan(PlanOf(ranks, replicas, members)), order("pp-ep-dp", plan) {}

  const Plan plan;
  const RankOrder order;
  ThreadHub hub;
  std::vector<std::unique_ptr<WireTransport>> transports;  // by process of the order
};

ThreadNetwork::ThreadNetwork(int ranks, int replicas, int members, const Options& options)
    : state_(std::make_unique<State>(ranks, replicas, members)) {
  ThreadHub& hub = state_->hub;
  hub.timeout = options.timeout;
  hub.name = [state = state_.get()](int p) {
    return NameOf(state->plan, state->order.DeviceOf(p));
  };
  for (int p = 0; p < state_->order.processes(); ++p) {
    hub.wires.push_back(std::make_unique<ThreadWire>(hub, p, state_->order.processes()));
  }
  for (const auto& wire : hub.wires) {
    state_->transports.push_back(std::make_unique<WireTransport>(state_->plan, state_->order, *wire,
                                                                 nullptr, options.strict));
  }
}

ThreadNetwork::~ThreadNetwork() = default;

Transport& ThreadNetwork::At(Device device) {
  return *state_->transports[static_cast<size_t>(state_->order.ProcessOf(device))];
}

}  // namespace contraflow
