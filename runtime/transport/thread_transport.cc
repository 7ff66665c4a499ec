// Whoever comes second to a message copies it, from the sender's bytes into the receiver's, outside
// of the mutex: nothing is buffered, and no progress depends on a thread that is busy elsewhere. On
// an edge either sends wait for their receives or receives for their sends, so one queue of the
// transfers themselves, linked through them, is enough.
//
// The thread of either side may so touch the other's transfer and bytes, also when that one has
// just given up: both must outlive the threads (threaded_run.h).

#include "runtime/transport/thread_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/transport.h"

namespace contraflow {
namespace {

/// Threads that come together to work on each other's memory, again and again: nobody begins before
/// all are here, nobody leaves before all have finished. Guarded by the gate's mutex.
struct Meeting {
  std::vector<int> workers;  ///< who takes part
  std::vector<char> here;    ///< those of them that have come this time
  size_t arrived = 0, finished = 0;
  int64_t round = 0;  ///< how many times they have met and left
  Clock::time_point last_arrival{};
};

/// Where the threads of a run wait for each other. One mutex guards all that they share; each
/// worker (one device) sleeps on a condition variable of its own. Nothing here allocates memory
/// once it stands, but messages of errors.
class ThreadGate {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// A worker gives up when it waits while no worker has called for `timeout`.
  ThreadGate(int ranks, int replicas, int members, std::chrono::milliseconds timeout);

  const int ranks, replicas, members;

  /// The number of a device: replica by replica, member by member, rank by rank.
  int WorkerOf(Device device) const {
    return (device.replica * members + device.member) * ranks + device.rank;
  }
  Device DeviceOf(int worker) const {
    return {worker / ranks / members, worker / ranks % members, worker % ranks};
  }
  /// `replica 0 member 1 rank 2`, without what there is only one of.
  std::string NameOf(int worker) const;

  /// Begins a call: takes the mutex, notes that the run goes on. Throws Aborted after Abort.
  Lock Enter();
  /// Sleeps until `ready()`, which is asked with the mutex held. Throws Aborted after Abort, Error
  /// with all that is known about who waits for whom after the timeout, which aborts. `at` is what
  /// the worker is doing, `meeting` whom it meets there, if anybody.
  template <typename Ready>
  void Wait(Lock& lock, int worker, const Instruction& at, const Meeting* meeting,
            const Ready& ready) {
    Begin(worker, at, meeting);
    while (!ready()) Sleep(lock, worker);
    End(worker);
  }
  /// Takes part in a meeting. `publish()` runs with the mutex held and says what this worker has
  /// for the others; `work()` runs without it once all are here, must not wait for anything and
  /// must not throw. Returns when all have finished their work: from then on nobody touches this
  /// worker's memory, also where the run is aborted meanwhile.
  template <typename Publish, typename Work>
  void Meet(Meeting* meeting, int worker, const Instruction& at, const Publish& publish,
            const Work& work) {
    Lock lock = Enter();
    publish();
    Arrive(meeting, worker);
    Wait(lock, worker, at, meeting, [&] { return meeting->arrived == meeting->workers.size(); });
    const int64_t round = meeting->round;
    lock.unlock();
    work();
    lock.lock();
    Finish(meeting);
    Sleeper& self = sleepers_[static_cast<size_t>(worker)];
    while (meeting->round == round) self.wake.wait(lock);
  }
  /// Has a worker look again whether it is ready; with the mutex held.
  void Wake(int worker);
  /// Ends all waiting, now and from now on.
  void Abort();

 private:
  struct Sleeper {
    std::condition_variable wake;
    bool waits = false;
    Instruction at{};                  // where it waits
    const Meeting* meeting = nullptr;  // for whom, or its peer
  };

  void Begin(int worker, const Instruction& at, const Meeting* meeting);
  void Sleep(Lock& lock, int worker);
  void End(int worker) { sleepers_[static_cast<size_t>(worker)].waits = false; }
  void Arrive(Meeting* meeting, int worker);
  void Finish(Meeting* meeting);
  void WakeAll(const Meeting& meeting);
  std::string WhoWaits() const;
  std::string Absent(const Meeting& meeting) const;

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<Sleeper> sleepers_;  // by worker
  bool aborted_ = false;
  Clock::time_point last_call_ = Clock::now();
};

/// `0.05`, without zeros behind it.
std::string DecimalSeconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(std::chrono::duration<double>(time).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

ThreadGate::ThreadGate(int rank_count, int replica_count, int member_count,
                       std::chrono::milliseconds timeout)
    : ranks(rank_count),
      replicas(replica_count),
      members(member_count),
      timeout_(timeout),
      sleepers_(static_cast<size_t>(replicas) * static_cast<size_t>(members) *
                static_cast<size_t>(ranks)) {
  CF_ASSERT(replicas > 0 && members > 0 && ranks > 0);
}

std::string ThreadGate::NameOf(int worker) const {
  const Device device = DeviceOf(worker);
  std::string name;
  if (replicas > 1) name += "replica " + std::to_string(device.replica) + " ";
  if (members > 1) name += "member " + std::to_string(device.member) + " ";
  return name + "rank " + std::to_string(device.rank);
}

ThreadGate::Lock ThreadGate::Enter() {
  Lock lock(mutex_);
  if (aborted_) throw Aborted();
  last_call_ = Clock::now();
  return lock;
}

void ThreadGate::Begin(int worker, const Instruction& at, const Meeting* meeting) {
  Sleeper& self = sleepers_[static_cast<size_t>(worker)];
  self.waits = true;
  self.at = at;
  self.meeting = meeting;
}

void ThreadGate::Sleep(Lock& lock, int worker) {
  if (aborted_) throw Aborted();
  const Clock::time_point deadline = last_call_ + timeout_;
  if (Clock::now() >= deadline) {
    // Nobody may begin to work on the memory of a worker that has given up.
    aborted_ = true;
    throw Error("no rank has made progress for " + DecimalSeconds(timeout_) + " s: " + WhoWaits() +
                "; verify the plan, or allow more time with --timeout");
  }
  // Whether it was woken, woke by itself or overslept: the caller looks again.
  sleepers_[static_cast<size_t>(worker)].wake.wait_until(lock, deadline);
}

void ThreadGate::Wake(int worker) { sleepers_[static_cast<size_t>(worker)].wake.notify_one(); }

void ThreadGate::WakeAll(const Meeting& meeting) {
  for (const int worker : meeting.workers) Wake(worker);
}

void ThreadGate::Arrive(Meeting* meeting, int worker) {
  const auto self = std::find(meeting->workers.begin(), meeting->workers.end(), worker);
  CF_ASSERT(self != meeting->workers.end());
  char& here = meeting->here[static_cast<size_t>(self - meeting->workers.begin())];
  CF_ASSERT(here == 0);
  here = 1;
  if (++meeting->arrived < meeting->workers.size()) return;
  meeting->last_arrival = Clock::now();
  WakeAll(*meeting);
}

void ThreadGate::Finish(Meeting* meeting) {
  if (++meeting->finished < meeting->workers.size()) return;
  meeting->arrived = meeting->finished = 0;
  std::fill(meeting->here.begin(), meeting->here.end(), 0);
  ++meeting->round;
  WakeAll(*meeting);
}

void ThreadGate::Abort() {
  const Lock lock(mutex_);
  aborted_ = true;
  for (Sleeper& sleeper : sleepers_) sleeper.wake.notify_one();
}

std::string ThreadGate::WhoWaits() const {
  std::string text;
  for (size_t w = 0; w < sleepers_.size(); ++w) {
    const Sleeper& sleeper = sleepers_[w];
    text += (w == 0 ? "" : "; ") + NameOf(static_cast<int>(w));
    if (!sleeper.waits) {
      text += " waits for nobody";
    } else {
      text += " waits at " + ToString(sleeper.at) + " for " +
              (sleeper.meeting != nullptr ? Absent(*sleeper.meeting)
                                          : "rank " + std::to_string(sleeper.at.peer));
    }
  }
  return text;
}

std::string ThreadGate::Absent(const Meeting& meeting) const {
  constexpr size_t kNamed = 3;
  const size_t absent = meeting.workers.size() - meeting.arrived;
  std::string text;
  size_t named = 0;
  for (size_t i = 0; i < meeting.workers.size() && named < kNamed; ++i) {
    if (meeting.here[i] != 0) continue;
    text += (named++ == 0 ? "" : ", ") + NameOf(meeting.workers[i]);
  }
  return absent > named ? text + " and " + std::to_string(absent - named) + " more" : text;
}

/// Transfers of one directed edge that were posted and not met yet: all SENDs or all RECVs.
struct Edge {
  Transfer *first = nullptr, *last = nullptr;
};

struct Reduction {
  Meeting meeting;
  std::vector<std::span<float>> parts;  // by place in the meeting
};

/// The members of one rank of one replica.
struct Exchange {
  Meeting meeting;
  Instruction instruction;  // of the first to come
  int first_worker = 0;
  std::vector<std::span<const std::byte>> parts;  // [from][to]
};

Meeting MeetingOf(std::vector<int> workers) {
  Meeting meeting;
  meeting.here.assign(workers.size(), 0);
  meeting.workers = std::move(workers);
  return meeting;
}

/// Adds up one worker's share of the elements, in the order of the parts, for all of them.
void AddShare(const std::vector<std::span<float>>& parts, size_t place) {
  const size_t size = parts[place].size();
  size_t i = size * place / parts.size();
  const size_t end = size * (place + 1) / parts.size();
  float sum[512];
  while (i < end) {
    const size_t count = std::min(std::size(sum), end - i);
    std::copy_n(parts[0].begin() + static_cast<std::ptrdiff_t>(i), count, sum);
    for (size_t p = 1; p < parts.size(); ++p) {
      for (size_t k = 0; k < count; ++k) sum[k] += parts[p][i + k];
    }
    for (const std::span<float> part : parts) std::copy_n(sum, count, part.data() + i);
    i += count;
  }
}

}  // namespace

struct ThreadNetwork::State {
  State(int ranks, int replicas, int members, Options the_options)
      : options(the_options), gate(ranks, replicas, members, the_options.timeout) {}

  const Options options;
  ThreadGate gate;
  // Guarded by the gate's mutex:
  std::map<std::pair<int, int>, Edge> edges;            // from worker, to worker
  std::map<std::pair<int, int>, Reduction> reductions;  // by stage and member, -1: all members
  std::vector<Exchange> exchanges;                      // replica by replica, by rank
  std::vector<std::unique_ptr<Face>> faces;             // by worker
};

class ThreadNetwork::Face : public Transport {
 public:
  Face(State& state, int worker)
      : state_(state), gate_(state.gate), worker_(worker), device_(state.gate.DeviceOf(worker)) {}

  void Post(std::span<Transfer* const> group) override {
    const Clock::time_point posted = Clock::now();
    for (Transfer* transfer : group) {
      CF_ASSERT(!transfer->done);
      const int peer = transfer->instruction.peer;
      if (peer < 0 || peer >= gate_.ranks || peer == device_.rank) {
        throw NoSuchRank(peer);
      }
      transfer->start = posted;
    }
    ThreadGate::Lock lock = gate_.Enter();
    for (Transfer* transfer : group) Offer(lock, transfer);
    if (!state_.options.strict) return;
    for (Transfer* transfer : group) Await(lock, transfer);
  }

  bool Done(Transfer& transfer) override {
    const ThreadGate::Lock lock = gate_.Enter();
    return transfer.done;
  }

  void Wait(Transfer& transfer) override {
    ThreadGate::Lock lock = gate_.Enter();
    Await(lock, &transfer);
  }

  Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                        std::span<float> values) override {
    if (std::find(holders.begin(), holders.end(), device_.rank) == holders.end()) {
      throw NoHolder();
    }
    Reduction& reduction = ReductionOf(reduce.stage, over, holders);
    const std::vector<int>& workers = reduction.meeting.workers;
    const auto place =
        static_cast<size_t>(std::find(workers.begin(), workers.end(), worker_) - workers.begin());
    size_t other = place;  // whose part has another size
    gate_.Meet(
        &reduction.meeting, worker_, reduce, [&] { reduction.parts[place] = values; },
        [&] {
          for (size_t p = 0; p < reduction.parts.size(); ++p) {
            if (reduction.parts[p].size() != values.size()) other = p;
          }
          if (other == place) AddShare(reduction.parts, place);
        });
    if (other != place) {
      throw OtherCount(values.size(), gate_.NameOf(workers[other]));
    }
    return reduction.meeting.last_arrival;
  }

  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    const auto members = static_cast<size_t>(gate_.members);
    if (send.size() != members || receive.size() != members) {
      throw WrongParts(instruction, members, send.size(), receive.size());
    }
    Exchange& exchange =
        state_.exchanges[static_cast<size_t>(device_.replica * gate_.ranks + device_.rank)];
    const auto self = static_cast<size_t>(device_.member);
    const auto part = [&](size_t from, size_t to) -> std::span<const std::byte>& {
      return exchange.parts[from * members + to];
    };
    size_t wrong = members;  // who sends another size than is expected
    size_t wrong_size = 0;
    gate_.Meet(
        &exchange.meeting, worker_, instruction,
        [&] {
          RequireSame(&exchange, instruction);
          for (size_t to = 0; to < members; ++to) part(self, to) = send[to];
        },
        [&] {
          for (size_t from = members; from-- > 0;) {
            if (part(from, self).size() == receive[from].size()) continue;
            wrong = from;
            wrong_size = part(from, self).size();
          }
          if (wrong < members) return;
          for (size_t from = 0; from < members; ++from) {
            std::copy(part(from, self).begin(), part(from, self).end(), receive[from].begin());
          }
        });
    if (wrong < members) {
      throw WrongPart(instruction, receive[wrong].size(),
                      gate_.NameOf(exchange.meeting.workers[wrong]), wrong_size);
    }
  }

  void Abort() override { gate_.Abort(); }

 private:
  int WorkerAt(int rank) const { return worker_ - device_.rank + rank; }

  /// Meets the oldest transfer that waits for this one, or lets this one wait.
  void Offer(ThreadGate::Lock& lock, Transfer* transfer) {
    const int peer = WorkerAt(transfer->instruction.peer);
    const bool send = IsSend(transfer->instruction.op);
    Edge& edge = send ? state_.edges[{worker_, peer}] : state_.edges[{peer, worker_}];
    if (edge.first == nullptr || IsSend(edge.first->instruction.op) == send) {
      transfer->next = nullptr;
      (edge.first == nullptr ? edge.first : edge.last->next) = transfer;
      edge.last = transfer;
      return;
    }
    Transfer* other = edge.first;
    edge.first = other->next;
    Deliver(lock, send ? transfer : other, send ? other : transfer, send ? worker_ : peer);
    gate_.Wake(peer);
  }

  void Deliver(ThreadGate::Lock& lock, Transfer* send, Transfer* receive, int from) {
    if (TagOf(send->instruction) != TagOf(receive->instruction)) {
      throw WrongMessage(receive->instruction, gate_.NameOf(from), send->instruction);
    }
    if (send->data.size() != receive->data.size()) {
      throw WrongSize(receive->instruction, receive->data.size(), gate_.NameOf(from),
                      send->data.size());
    }
    // Out of the queue, and not done: nobody else touches the two.
    lock.unlock();
    std::copy(send->data.begin(), send->data.end(), receive->data.begin());
    lock.lock();
    send->start = receive->start = std::max(send->start, receive->start);
    send->end = receive->end = Clock::now();
    send->done = receive->done = true;
  }

  void Await(ThreadGate::Lock& lock, Transfer* transfer) {
    gate_.Wait(lock, worker_, transfer->instruction, nullptr, [&] { return transfer->done; });
  }

  Reduction& ReductionOf(int stage, Over over, std::span<const int> holders) {
    const bool all = over == Over::kAllMembers;
    const ThreadGate::Lock lock = gate_.Enter();
    Reduction& reduction = state_.reductions[{stage, all ? -1 : device_.member}];
    if (!reduction.parts.empty()) return reduction;
    std::vector<int> workers;
    for (int replica = 0; replica < gate_.replicas; ++replica) {
      for (int member = 0; member < gate_.members; ++member) {
        if (!all && member != device_.member) continue;
        for (const int rank : holders) workers.push_back(gate_.WorkerOf({replica, member, rank}));
      }
    }
    reduction.parts.resize(workers.size());
    reduction.meeting = MeetingOf(std::move(workers));
    return reduction;
  }

  /// All members are at the same instruction as the one that came first.
  void RequireSame(Exchange* exchange, const Instruction& instruction) const {
    if (exchange->meeting.arrived == 0) {
      exchange->instruction = instruction;
      exchange->first_worker = worker_;
    } else if (!SameExchange(exchange->instruction, instruction)) {
      throw OtherExchange(gate_.NameOf(worker_), instruction, gate_.NameOf(exchange->first_worker),
                          exchange->instruction);
    }
  }

  State& state_;
  ThreadGate& gate_;
  const int worker_;
  const Device device_;
};

ThreadNetwork::ThreadNetwork(int ranks, int replicas, int members, Options options)
    : state_(std::make_unique<State>(ranks, replicas, members, options)) {
  const ThreadGate& gate = state_->gate;
  for (int worker = 0; worker < replicas * members * ranks; ++worker) {
    state_->faces.push_back(std::make_unique<Face>(*state_, worker));
  }
  for (int replica = 0; replica < replicas; ++replica) {
    for (int rank = 0; rank < ranks; ++rank) {
      Exchange& exchange = state_->exchanges.emplace_back();
      std::vector<int> workers;
      for (int member = 0; member < members; ++member) {
        workers.push_back(gate.WorkerOf({replica, member, rank}));
      }
      exchange.parts.resize(workers.size() * workers.size());
      exchange.meeting = MeetingOf(std::move(workers));
    }
  }
}

ThreadNetwork::~ThreadNetwork() = default;

Transport& ThreadNetwork::At(Device device) {
  return *state_->faces[static_cast<size_t>(state_->gate.WorkerOf(device))];
}

}  // namespace contraflow
