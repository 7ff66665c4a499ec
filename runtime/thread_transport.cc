// Everything shared is behind one mutex, held only to move messages from list to list; bytes are
// copied outside of it. A message owns its bytes, so a rank that gives up leaves nothing behind
// that another could still be reading.

#include "runtime/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/error.h"

namespace contraflow {
namespace {

struct Letter {
  Instruction instruction;
  std::vector<std::byte> bytes;
  Clock::time_point start, end;  // when it was handed in, and when it was there
};

struct Edge {
  std::deque<Letter> letters;
  std::deque<std::pair<Transfer*, Clock::time_point>> receives;  // posted and not served yet, since
  int64_t sent = 0, taken = 0;
};

struct Reduction {
  std::vector<std::vector<float>> parts;  // of each member, replica by replica
  size_t arrived = 0;
  bool done = false;
  Clock::time_point last_arrival;
};

struct Worker {
  std::condition_variable wake;
  bool news = false;  // something happened since it last looked
  std::optional<Instruction> waits_at;
};

}  // namespace

struct ThreadNetwork::State {
  State(int rank_count, int replica_count, Options the_options)
      : ranks(rank_count),
        replicas(replica_count),
        options(the_options),
        workers(static_cast<size_t>(rank_count) * static_cast<size_t>(replica_count)) {}

  const int ranks, replicas;
  const Options options;
  std::mutex mutex;             // guards everything below, and the receives' Transfers' place in it
  std::vector<Worker> workers;  // replica by replica
  std::map<std::pair<int, int>, Edge> edges;             // from worker, to worker
  std::map<int, std::shared_ptr<Reduction>> reductions;  // by stage, those not complete yet
  std::vector<std::unique_ptr<Face>> faces;
  bool aborted = false;
  Clock::time_point last_call = Clock::now();

  std::string NameOf(int worker) const {
    const std::string rank = "rank " + std::to_string(worker % ranks);
    return replicas == 1 ? rank : "replica " + std::to_string(worker / ranks) + " " + rank;
  }

  std::string WhoWaits() const {
    std::string text;
    for (size_t w = 0; w < workers.size(); ++w) {
      text += (w == 0 ? "" : "; ") + NameOf(static_cast<int>(w));
      const std::optional<Instruction>& at = workers[w].waits_at;
      if (!at) {
        text += " waits for nobody";
      } else if (at->peer >= 0) {
        text += " waits at " + ToString(*at) + " for rank " + std::to_string(at->peer);
      } else {
        text += " waits at " + ToString(*at) + " for the other copies of the stage";
      }
    }
    return text;
  }

  void Wake(int worker) {
    workers[static_cast<size_t>(worker)].news = true;
    workers[static_cast<size_t>(worker)].wake.notify_one();
  }

  /// Sleeps until `ready()`, which is called with the mutex held and may let go of it meanwhile.
  template <typename Ready>
  void WaitFor(std::unique_lock<std::mutex>& lock, int worker, const Instruction& at,
               const Ready& ready) {
    Worker& self = workers[static_cast<size_t>(worker)];
    self.waits_at = at;
    while (self.news = false, !ready()) {
      if (aborted) throw Aborted();
      const Clock::time_point deadline = last_call + options.timeout;
      if (Clock::now() >= deadline) {
        const double seconds = std::chrono::duration<double>(options.timeout).count();
        std::string text = std::to_string(seconds);
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        throw Error("no rank has made progress for " + text + " s: " + WhoWaits() +
                    "; verify the plan, or allow more time with --timeout");
      }
      self.wake.wait_until(lock, deadline, [&] { return self.news; });
    }
    self.waits_at.reset();
  }

  /// Called first by every call: the run goes on, and another rank's failure ends it here.
  void Enter() {
    if (aborted) throw Aborted();
    last_call = Clock::now();
  }

  /// Serves the oldest receives of an edge with the letters that are there.
  void Deliver(std::unique_lock<std::mutex>& lock, int from, int to) {
    Edge& edge = edges[{from, to}];
    while (!edge.receives.empty() && !edge.letters.empty()) {
      const auto [transfer, posted] = edge.receives.front();
      Letter letter = std::move(edge.letters.front());
      edge.receives.pop_front();
      edge.letters.pop_front();
      if (TagOf(letter.instruction) != TagOf(transfer->instruction)) {
        throw Error(ToString(transfer->instruction) + " got the wrong message: " + NameOf(from) +
                    " sent " + ToString(letter.instruction) + " first; verify the plan");
      }
      if (letter.bytes.size() != transfer->data.size()) {
        throw Error(ToString(transfer->instruction) + " expects " +
                    std::to_string(transfer->data.size()) + " bytes, but " + NameOf(from) +
                    " sent " + std::to_string(letter.bytes.size()));
      }
      lock.unlock();
      std::copy(letter.bytes.begin(), letter.bytes.end(), transfer->data.begin());
      lock.lock();
      transfer->start = std::max(posted, letter.start);
      transfer->end = std::max(posted, letter.end);
      transfer->done = true;
      ++edge.taken;
      if (options.strict) Wake(from);
    }
  }
};

class ThreadNetwork::Face : public Transport {
 public:
  Face(State& state, int worker)
      : state_(state), worker_(worker), first_(worker / state.ranks * state.ranks) {}

  void Post(std::span<Transfer* const> group) override {
    const Clock::time_point posted = Clock::now();
    std::vector<Letter> letters;
    for (const Transfer* transfer : group) {
      CF_ASSERT(!transfer->done);
      const int peer = transfer->instruction.peer;
      if (peer < 0 || peer >= state_.ranks || PeerOf(*transfer) == worker_) {
        throw Error("there is no other rank " + std::to_string(peer) +
                    " to exchange messages with");
      }
      if (!IsSend(*transfer)) continue;
      letters.push_back(
          {transfer->instruction, {transfer->data.begin(), transfer->data.end()}, posted, {}});
    }
    std::unique_lock lock(state_.mutex);
    state_.Enter();
    const Clock::time_point sent = Clock::now();
    auto letter = letters.begin();
    std::vector<int64_t> numbers;
    for (Transfer* transfer : group) {
      const int peer = PeerOf(*transfer);
      if (!IsSend(*transfer)) {
        state_.edges[{peer, worker_}].receives.emplace_back(transfer, posted);
        continue;
      }
      Edge& edge = state_.edges[{worker_, peer}];
      letter->end = sent;
      edge.letters.push_back(std::move(*letter++));
      numbers.push_back(++edge.sent);
      state_.Wake(peer);
      transfer->start = posted;
      transfer->end = sent;
      transfer->done = !state_.options.strict;
    }
    if (state_.options.strict) Meet(lock, group, numbers);
  }

  bool Done(Transfer& transfer) override {
    if (transfer.done) return true;
    std::unique_lock lock(state_.mutex);
    state_.Enter();
    if (!IsSend(transfer)) state_.Deliver(lock, PeerOf(transfer), worker_);
    return transfer.done;
  }

  void Wait(Transfer& transfer) override {
    if (transfer.done) return;
    std::unique_lock lock(state_.mutex);
    state_.Enter();
    state_.WaitFor(lock, worker_, transfer.instruction, [&] {
      if (!IsSend(transfer)) state_.Deliver(lock, PeerOf(transfer), worker_);
      return transfer.done;
    });
  }

  Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                        std::span<float> values) override {
    CF_ASSERT(over == Over::kAllMembers);
    const int rank = worker_ - first_;
    const auto self = std::find(holders.begin(), holders.end(), rank);
    if (self == holders.end()) throw Error("this rank holds no copy of the stage");
    const size_t members = holders.size() * static_cast<size_t>(state_.replicas);
    if (members == 1) return Clock::now();
    const size_t member = static_cast<size_t>(worker_ / state_.ranks) * holders.size() +
                          static_cast<size_t>(self - holders.begin());
    std::vector<float> part(values.begin(), values.end());

    std::unique_lock lock(state_.mutex);
    state_.Enter();
    std::shared_ptr<Reduction>& open = state_.reductions[reduce.stage];
    if (!open) {
      open = std::make_shared<Reduction>();
      open->parts.resize(members);
    }
    const std::shared_ptr<Reduction> reduction = open;
    CF_ASSERT(reduction->parts.size() == members);
    if (!reduction->parts[member].empty()) throw Error("reduces the stage a second time");
    reduction->parts[member] = std::move(part);
    if (++reduction->arrived == members) {
      reduction->last_arrival = Clock::now();
      state_.reductions.erase(reduce.stage);
      lock.unlock();
      AddInOrder(*reduction);
      lock.lock();
      reduction->done = true;
      for (int replica = 0; replica < state_.replicas; ++replica) {
        for (const int holder : holders) {
          state_.Wake(replica * state_.ranks + holder);
        }
      }
    }
    state_.WaitFor(lock, worker_, reduce, [&] { return reduction->done; });
    lock.unlock();
    const std::vector<float>& sum = reduction->parts.front();
    CF_ASSERT(sum.size() == values.size());
    std::copy(sum.begin(), sum.end(), values.begin());
    return reduction->last_arrival;
  }

  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    throw Error(ToString(instruction) + ": there is no expert group of " +
                std::to_string(std::max(send.size(), receive.size())));
  }

  void Abort() override {
    const std::lock_guard lock(state_.mutex);
    state_.aborted = true;
    for (size_t w = 0; w < state_.workers.size(); ++w) state_.Wake(static_cast<int>(w));
  }

 private:
  static bool IsSend(const Transfer& transfer) {
    return WorkOf(transfer.instruction.op) == Work::kSend;
  }
  int PeerOf(const Transfer& transfer) const { return first_ + transfer.instruction.peer; }

  /// Rendezvous: every receive of the group is served and every letter (with these numbers on its
  /// edge) taken.
  void Meet(std::unique_lock<std::mutex>& lock, std::span<Transfer* const> group,
            const std::vector<int64_t>& numbers) {
    auto number = numbers.begin();
    for (Transfer* transfer : group) {
      const bool send = IsSend(*transfer);
      const int64_t own = send ? *number++ : 0;
      const int peer = PeerOf(*transfer);
      state_.WaitFor(lock, worker_, transfer->instruction, [&] {
        // While it waits for one of the group, it serves all of it.
        for (const Transfer* other : group) {
          if (!IsSend(*other) && !other->done) state_.Deliver(lock, PeerOf(*other), worker_);
        }
        return send ? state_.edges[{worker_, peer}].taken >= own : transfer->done;
      });
      if (send) {
        transfer->done = true;
        transfer->end = Clock::now();
      }
    }
  }

  /// Leaves the sum of all parts in the first.
  static void AddInOrder(Reduction& reduction) {
    std::vector<float>& sum = reduction.parts.front();
    for (size_t p = 1; p < reduction.parts.size(); ++p) {
      const std::vector<float>& part = reduction.parts[p];
      CF_ASSERT(part.size() == sum.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
  }

  State& state_;
  const int worker_;  // replica * ranks + rank
  const int first_;   // rank 0 of the same replica
};

ThreadNetwork::ThreadNetwork(int ranks, int replicas, Options options)
    : state_(std::make_unique<State>(ranks, replicas, options)) {
  CF_ASSERT(ranks > 0 && replicas > 0);
  for (int worker = 0; worker < ranks * replicas; ++worker) {
    state_->faces.push_back(std::make_unique<Face>(*state_, worker));
  }
}

ThreadNetwork::~ThreadNetwork() = default;

Transport& ThreadNetwork::At(int replica, int rank) {
  return *state_->faces[static_cast<size_t>(replica * state_->ranks + rank)];
}

void ThreadNetwork::CheckEmpty() const {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [ends, edge] : state_->edges) {
    if (edge.letters.empty()) continue;
    throw Error(state_->NameOf(ends.second) + " never received what " + state_->NameOf(ends.first) +
                " sent with " + ToString(edge.letters.front().instruction) + "; verify the plan");
  }
}

}  // namespace contraflow
