#include "runtime/nccl/comms.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

/// Pause between two polls of a call in progress.
constexpr std::chrono::microseconds kPause{50};
/// Between two looks at whether what is waited for has been given up.
constexpr milliseconds kTurn{1};
/// How long an abort waits for a call of NCCL to come back. If one does not, the device's queue is
/// full and stays so: the process cannot be saved, and its end frees the device.
constexpr milliseconds kPatience{2'000};

/// NCCL takes powers of two; rather fewer than there are.
int PowerOfTwo(int ctas) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(ctas, 1))));
}

/// Edges that can be split off at the same time: none of a group meets another at a rank.
std::vector<std::vector<Edge>> DisjointGroups(const std::vector<Edge>& edges) {
  std::vector<std::vector<Edge>> groups;
  for (const Edge& edge : edges) {
    const auto meets = [&](const Edge& other) {
      return other.first == edge.first || other.first == edge.second ||
             other.second == edge.first || other.second == edge.second;
    };
    const auto free = std::ranges::find_if(
        groups, [&](const auto& group) { return std::ranges::none_of(group, meets); });
    (free == groups.end() ? groups.emplace_back() : *free).push_back(edge);
  }
  return groups;
}

}  // namespace

std::vector<Edge> EdgesOf(const Plan& plan) {
  std::set<Edge> edges;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (const Instruction& i : plan.program(rank)) {
      if (IsSend(i.op)) edges.emplace(rank, i.peer);
    }
  }
  return {edges.begin(), edges.end()};
}

NcclComms::NcclComms(const Plan& plan, const RankOrder& order, int process, const SmBudget& budget,
                     Nccl& nccl, Options options)
    : plan_(plan),
      device_(order.DeviceOf(process)),
      process_(process),
      processes_(order.processes()),
      budget_(budget),
      nccl_(nccl),
      options_(std::move(options)) {}

NcclComms::~NcclComms() {
  if (!closed_) Abort();
  const std::lock_guard lock(aborting_);
  if (abort_.joinable()) abort_.join();
}

int NcclComms::CtasOf(Use use) const {
  switch (use) {
    case Use::kExperts:
      return PowerOfTwo(budget_.expert_ctas);
    case Use::kSums:
      return PowerOfTwo(budget_.sum_ctas);
  }
  CF_ASSERT(false);
}

/// A communicator that Abort would pull away from under a call is not aborted before the call is
/// back.
template <typename Call>
auto NcclComms::Locked(const Call& call) {
  // An abort has the lock until the caller, on its way out, has dropped its graph.
  std::unique_lock lock(calls_, std::defer_lock);
  while (!aborted_ && !lock.try_lock_for(kTurn)) continue;
  if (aborted_) throw Aborted();
  return call();
}

void NcclComms::Join(const std::string& id) {
  NcclCommOptions options{"all", 1};
  world_ = Locked([&] { return nccl_.Join(id, process_, processes_, options); });
  AwaitReady(world_, "the processes of the job to join");
  // Which pipeline, and which expert group, this device belongs to.
  const int pipeline = device_.replica * plan_.expert_parallel + device_.member;
  const int group = device_.replica * plan_.ranks + device_.rank;
  SplitEdges(pipeline);
  if (plan_.expert_parallel > 1) {
    comms_[0] = Split("experts", group, device_.member, CtasOf(Use::kExperts));
  }
  comms_[1] = Split("sums", 0, process_, CtasOf(Use::kSums));
}

/// All processes take part in each split, with an edge of their pipeline or none.
void NcclComms::SplitEdges(int pipeline) {
  const std::vector<Edge> edges = EdgesOf(plan_);
  const int ctas = PowerOfTwo(budget_.link_ctas);
  for (const std::vector<Edge>& group : DisjointGroups(edges)) {
    const auto mine = std::ranges::find_if(group, [this](const Edge& edge) {
      return edge.first == device_.rank || edge.second == device_.rank;
    });
    if (mine == group.end()) {
      Split("", Nccl::kNoColor, 0, ctas);
      continue;
    }
    const auto number = static_cast<int>(std::ranges::find(edges, *mine) - edges.begin());
    edges_[*mine] =
        Split("rank " + std::to_string(mine->first) + " to " + std::to_string(mine->second),
              pipeline * static_cast<int>(edges.size()) + number,
              mine->first == device_.rank ? 0 : 1, ctas);
  }
}

NcclComm* NcclComms::Split(const std::string& name, int color, int key, int ctas) {
  NcclComm* const comm = Locked([&] { return nccl_.Split(world_, color, key, {name, ctas}); });
  if (comm == nullptr) {
    AwaitReady(world_, "communicators of others");
    return nullptr;
  }
  all_.push_back(comm);
  AwaitReady(comm, "communicator \"" + name + "\"");
  return comm;
}

void NcclComms::AwaitReady(NcclComm* comm, const std::string& what) {
  Await([&] { return Locked([&] { return nccl_.Ready(comm); }); }, what);
}

void NcclComms::Await(const std::function<bool()>& done, const std::string& what) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  while (!done()) {
    if (aborted_) throw Aborted();
    if (Clock::now() > deadline) {
      throw Error("NCCL: waited " + SecondsText(options_.timeout) + " for " + what +
                  "; look for a process that failed or hangs, for a firewall between the machines, "
                  "and whether NCCL_SOCKET_IFNAME names a network that they share");
    }
    std::this_thread::sleep_for(kPause);
  }
  if (options_.moved) options_.moved();
}

void NcclComms::Group(const std::function<void()>& issue) {
  BeginGroup();
  Locked(issue);
  EndGroup();
}

void NcclComms::ExchangeInGroups(size_t count, size_t place, size_t each,
                                 const std::function<void(size_t to, size_t from)>& issue) {
  const size_t step = std::max<size_t>(1, kMostMessages / (2 * std::max<size_t>(each, 1)));
  for (size_t begin = 1; begin < count; begin += step) {
    Group([&] {
      for (size_t distance = begin; distance < std::min(begin + step, count); ++distance) {
        issue((place + distance) % count, (place + count - distance) % count);
      }
    });
  }
}

void NcclComms::BeginGroup() {
  Locked([&] { nccl_.GroupStart(); });
  ++depth_;
}

void NcclComms::EndGroup() {
  Locked([&] { nccl_.GroupEnd(); });
  if (--depth_ > 0) return;
  for (NcclComm* comm : all_) {
    if (!Locked([&] { return nccl_.Ready(comm); })) AwaitReady(comm, "messages to be issued");
  }
}

void NcclComms::Poll() {
  Locked([&] {
    for (NcclComm* comm : all_) nccl_.Check(comm);
  });
}

void NcclComms::Abort() {
  const std::lock_guard lock(aborting_);
  if (aborted_.exchange(true)) return;
  abort_ = std::thread([this] {
    if (!calls_.try_lock_for(kPatience)) return;
    const std::lock_guard calls(calls_, std::adopt_lock);
    if (!closed_) End();
  });
}

void NcclComms::Register(NcclComm* comm, std::span<std::byte> memory) {
  Locked([&] { registered_[comm].push_back(nccl_.Register(comm, memory.data(), memory.size())); });
}

NcclWindow* NcclComms::Open(NcclComm* comm, std::span<std::byte> memory) {
  NcclWindow* const window =
      Locked([&] { return windows_[comm] = nccl_.Open(comm, memory.data(), memory.size()); });
  AwaitReady(comm, "a window onto memory");
  return window;
}

void NcclComms::Deregister(NcclComm* comm) noexcept {
  if (const auto found = registered_.find(comm); found != registered_.end()) {
    for (void* registration : found->second) nccl_.Deregister(comm, registration);
  }
  if (const auto found = windows_.find(comm); found != windows_.end()) {
    nccl_.Close(comm, found->second);
  }
}

/// Side by side, as each waits until no graph holds its communicator any more, and a graph with
/// messages of several is done only when all of these have ended. Then what they were split off.
/// NCCL undoes registrations itself: to undo one first would wait for the peer's proxy.
void NcclComms::End() {
  std::vector<std::thread> aborts;
  for (NcclComm* comm : all_) {
    aborts.emplace_back([this, comm] { nccl_.Abort(comm); });
  }
  for (std::thread& abort : aborts) abort.join();
  if (world_ != nullptr) nccl_.Abort(world_);
}

void NcclComms::Close() {
  std::vector<NcclComm*> last_first(all_.rbegin(), all_.rend());
  if (world_ != nullptr) last_first.push_back(world_);
  for (NcclComm* comm : last_first) {
    Locked([&] {
      Deregister(comm);
      registered_.erase(comm);
      windows_.erase(comm);
      nccl_.Finalize(comm);
    });
    AwaitReady(comm, "the other processes at the end");
  }
  Locked([&] {
    for (NcclComm* comm : last_first) nccl_.Destroy(comm);
    closed_ = true;
  });
}

}  // namespace contraflow
