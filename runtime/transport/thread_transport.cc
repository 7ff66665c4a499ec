// Whoever comes second to a message copies it, from the sender's bytes into the receiver's, outside
// of the mutex: nothing is buffered, and no progress depends on a thread that is busy elsewhere. On
// an edge either sends wait for their receives or receives for their sends, so one queue of the
// transfers themselves, linked through them, is enough.
//
// The thread of either side may so touch the other's transfer and bytes, also when that one has
// just given up: both must outlive the threads (threaded_run.h).

#include "runtime/transport/thread_transport.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/transport/thread_gate.h"

namespace contraflow {
namespace {

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
    BeginPost(group, device_.rank, gate_.ranks);
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
    RequireHolder(holders, device_.rank);
    Reduction& reduction = ReductionOf(reduce.stage, over, holders);
    const std::vector<int>& workers = reduction.meeting.workers;
    const auto place =
        static_cast<size_t>(std::find(workers.begin(), workers.end(), worker_) - workers.begin());
    const size_t count = reduction.parts.size();
    shares_.resize(count);
    size_t other = place;  // whose part has a different size
    gate_.Meet(
        &reduction.meeting, worker_, reduce, [&] { reduction.parts[place] = values; },
        [&] {
          for (size_t p = 0; p < count; ++p) {
            if (reduction.parts[p].size() != values.size()) other = p;
          }
          if (other != place) return;
          // This worker's share of the elements, for all of them.
          const std::span<float> sum = ShareOf(values, place, count);
          for (size_t p = 0; p < count; ++p) shares_[p] = ShareOf(reduction.parts[p], place, count);
          AddShares(shares_, sum);
          for (const std::span<float> part : reduction.parts) {
            if (part.data() == values.data()) continue;
            std::copy(sum.begin(), sum.end(), ShareOf(part, place, count).begin());
          }
        });
    if (other != place) {
      throw OtherCount(values.size(), gate_.NameOf(workers[other]));
    }
    return reduction.meeting.last_arrival;
  }

  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    const auto members = static_cast<size_t>(gate_.members);
    RequireParts(instruction, members, send.size(), receive.size());
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
    reduction.meeting = Meeting(std::move(workers));
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
  std::vector<std::span<const float>> shares_;  // of the sum under way
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
      exchange.meeting = Meeting(std::move(workers));
    }
  }
}

ThreadNetwork::~ThreadNetwork() = default;

Transport& ThreadNetwork::At(Device device) {
  return *state_->faces[static_cast<size_t>(state_->gate.WorkerOf(device))];
}

}  // namespace contraflow
