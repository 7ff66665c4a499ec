#include "tests/emulator/nccl_network.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <span>
#include <thread>
#include <tuple>

#include "compiler/plan/error.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/emulator.h"

namespace contraflow {
namespace {

/// How often a communicator has to be asked until it is ready.
constexpr int kTurns = 2;

/// How long an abort waits for a graph with messages of the communicator; NCCL would for ever.
constexpr std::chrono::seconds kPatience{100};

struct Handle : NcclComm {
  explicit Handle(int the_comm, Handle* the_parent) : comm(the_comm), parent(the_parent) {}
  const int comm;
  Handle* const parent;
  int splits = 0, turns = kTurns;
  bool finalized = false;
  std::atomic<bool> closed = false;  // an abort may come from another thread
  std::list<std::span<const std::byte>> registered;
};

struct Window : NcclWindow {};

}  // namespace

/// NCCL, GPU and stream of one process.
class NcclNetwork::Process : public Nccl, public EmulatedGpu, public emulator::Queue {
 public:
  Process(NcclNetwork& network, int process)
      : network_(network), self_(static_cast<size_t>(process)) {}

  std::string name() const override { return "network"; }
  gpu::Stream stream() { return {static_cast<emulator::Queue*>(this), 8}; }
  int open() const {
    return static_cast<int>(
        std::ranges::count_if(handles_, [](const auto& handle) { return !handle->closed; }));
  }
  int registered() const {
    size_t registered = 0;
    for (const auto& handle : handles_) registered += handle->registered.size();
    return static_cast<int>(registered);
  }
  std::string failure;
  std::atomic<int> deregistered = 0;

  // A call of the GPU: a stream is given a step, or part of a graph.
  void Add(const char*, std::function<void()> work) override {
    const std::lock_guard lock(network_.mutex_);
    Steps().push_back({{}, std::move(work), {}});
  }
  gpu::Stream NewStream(int, Priority, const std::string& name) override {
    return name == "watch" ? gpu::Stream{} : stream();
  }
  void CopyToDevice(gpu::Stream at, void* to, const void* from, size_t bytes) override {
    Give(at, [=] { Copy(to, from, bytes); });
  }
  void CopyToHost(gpu::Stream at, void* to, const void* from, size_t bytes) override {
    Give(at, [=] { Copy(to, from, bytes); });
  }
  void Zero(gpu::Stream at, void* to, size_t bytes) override {
    Give(at, [=] { std::memset(to, 0, bytes); });
  }
  void Record(GpuEvent* event, gpu::Stream at) override {
    const std::lock_guard lock(network_.mutex_);
    for (const auto& handle : handles_) {
      if (!handle->closed) RequireReady(*handle);
    }
    recorded_[event] = at.handle == nullptr ? 0 : network_.steps[self_].size();
  }
  void Wait(gpu::Stream, GpuEvent* event) override {
    if (recorded_.count(event) == 0) throw gpu::GpuError("waits for an event of nothing");
  }
  // All is done in one order.
  void WaitOutside(gpu::Stream at, GpuEvent* event) override { Wait(at, event); }
  bool Done(GpuEvent* event) override {
    if (network_.how_ == Processes::kInTurn) return true;
    const std::lock_guard lock(network_.mutex_);
    network_.Advance();
    return network_.done_[self_] >= recorded_.at(event);
  }
  void Synchronize(GpuEvent* event) override {
    while (!Done(event)) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  void Synchronize() override {
    Record(nullptr, stream());
    Synchronize(nullptr);
  }
  void BeginCapture(gpu::Stream) override { capturing_ = true; }
  GpuGraph* EndCapture(gpu::Stream) override {
    capturing_ = false;
    return reinterpret_cast<GpuGraph*>(&graph_);
  }
  void Launch(GpuGraph*, gpu::Stream) override {
    const std::lock_guard lock(network_.mutex_);
    Steps().insert(Steps().end(), graph_.begin(), graph_.end());
  }
  void Drop(GpuGraph*) noexcept override {
    const std::lock_guard lock(network_.mutex_);
    graph_.clear();
  }

  // A call of NCCL.
  std::string NewId() override { return "the one"; }
  NcclComm* Join(const std::string& id, int rank, int size,
                 const NcclCommOptions& options) override {
    const std::lock_guard lock(network_.mutex_);
    if (id != "the one" || size != static_cast<int>(network_.steps.size())) {
      throw Error("joins another job");
    }
    return Enter(network_.CommOf(-1, 0, 0, options), rank, nullptr);
  }
  NcclComm* Split(NcclComm* parent, int color, int key, const NcclCommOptions& options) override {
    const std::lock_guard lock(network_.mutex_);
    auto* const from = static_cast<Handle*>(parent);
    RequireReady(*from);
    from->turns = kTurns;
    if (color != kNoColor) {
      return Enter(network_.CommOf(from->comm, from->splits++, color, options), key, from);
    }
    const int others = network_.CommOf(from->comm, from->splits++, color, {"none", 1});
    AddMember(others, 0);
    return nullptr;
  }
  std::span<std::byte> NewMemory(size_t bytes) override {
    return memory_.emplace_back(Allocate(bytes), bytes);
  }
  void RequirePuts() override {}
  NcclWindow* Open(NcclComm* comm, std::byte* data, size_t bytes) override {
    const std::lock_guard lock(network_.mutex_);
    auto* const handle = static_cast<Handle*>(comm);
    RequireReady(*handle);
    if (!Within(memory_, data, bytes)) throw Error("a window onto memory that is not NCCL's");
    handle->turns = kTurns;
    network_.comms[static_cast<size_t>(handle->comm)].windows[static_cast<int>(self_)] = {data,
                                                                                          bytes};
    handle->registered.emplace_back(data, bytes);
    return windows_.emplace_back(std::make_unique<Window>()).get();
  }
  void Close(NcclComm* comm, NcclWindow*) noexcept override {
    auto* const handle = static_cast<Handle*>(comm);
    if (handle->closed) return;
    handle->registered.clear();
    ++deregistered;
  }
  void Put(NcclComm* comm, const void* data, size_t bytes, int to, NcclWindow*, size_t offset,
           gpu::Stream at) override {
    const auto* const from = static_cast<const std::byte*>(data);
    if (!Within(static_cast<Handle*>(comm)->registered, from, bytes)) {
      throw Error("a put of memory that is not in the window");
    }
    GiveAlone(comm, {OneSided::Kind::kPut, 0, to, from, bytes, offset}, at);
  }
  void Signal(NcclComm* comm, int to, gpu::Stream at) override {
    GiveAlone(comm, {OneSided::Kind::kSignal, 0, to}, at);
  }
  void AwaitSignal(NcclComm* comm, int from, gpu::Stream at) override {
    GiveAlone(comm, {OneSided::Kind::kAwait, 0, from}, at);
  }
  void* Register(NcclComm* comm, std::byte* data, size_t bytes) override {
    auto* const handle = static_cast<Handle*>(comm);
    RequireReady(*handle);
    if (!Within(memory_, data, bytes)) throw Error("memory is registered that is not NCCL's");
    return &handle->registered.emplace_back(data, bytes);
  }
  void Deregister(NcclComm* comm, void* registration) noexcept override {
    auto* const handle = static_cast<Handle*>(comm);
    if (handle->closed) return;
    handle->registered.remove_if([&](const auto& one) { return &one == registration; });
    ++deregistered;
  }
  void GroupStart() override {
    if (depth_++ == 0) group_ = {};
  }
  void GroupEnd() override {
    if (depth_ == 0) throw Error("a group ends that has not begun");
    if (--depth_ > 0 || used_.empty()) return;
    const std::lock_guard lock(network_.mutex_);
    if (!group_.messages.empty()) Steps().push_back(group_);
    for (Handle* handle : used_) handle->turns = kTurns;
    used_.clear();
  }
  void Send(NcclComm* comm, const void* data, size_t bytes, int to, gpu::Stream at) override {
    Put(comm, {true, 0, to, static_cast<std::byte*>(const_cast<void*>(data)), bytes, false}, at);
  }
  void Recv(NcclComm* comm, void* data, size_t bytes, int from, gpu::Stream at) override {
    Put(comm, {false, 0, from, static_cast<std::byte*>(data), bytes, false}, at);
  }
  bool Ready(NcclComm* comm) override {
    auto* const handle = static_cast<Handle*>(comm);
    if (handle->turns > 0) --handle->turns;
    if (handle->turns == 0 && handle->parent != nullptr) handle->parent->turns = 0;
    return handle->turns == 0;
  }
  void Check(NcclComm*) override {
    const std::lock_guard lock(network_.mutex_);
    if (!failure.empty()) throw Error(failure);
  }
  void Finalize(NcclComm* comm) override {
    auto* const handle = static_cast<Handle*>(comm);
    RequireReady(*handle);
    if (InGraph(*handle)) throw Error("a communicator ends that a graph has messages of");
    if (!handle->registered.empty()) throw Error("a communicator ends with registered memory");
    handle->turns = kTurns;
    handle->finalized = true;
  }
  void Destroy(NcclComm* comm) noexcept override {
    auto* const handle = static_cast<Handle*>(comm);
    handle->closed = handle->finalized && handle->turns == 0;
  }
  void Abort(NcclComm* comm) noexcept override {
    auto* const handle = static_cast<Handle*>(comm);
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (InGraph(*handle) && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    handle->closed = !InGraph(*handle);
    if (handle->closed) handle->registered.clear();
  }

 private:
  template <typename Spans>
  static bool Within(const Spans& spans, const std::byte* data, size_t bytes) {
    return std::ranges::any_of(spans, [&](const auto& span) {
      return data >= span.data() && data + bytes <= span.data() + span.size();
    });
  }
  bool InGraph(const Handle& handle) {
    const std::lock_guard lock(network_.mutex_);
    return std::ranges::any_of(graph_, [&](const Step& step) {
      return (step.alone && step.alone->comm == handle.comm) ||
             std::ranges::any_of(step.messages,
                                 [&](const Message& m) { return m.comm == handle.comm; });
    });
  }
  static void Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Give(gpu::Stream at, std::function<void()> work) {
    if (at.handle != nullptr) return Add("", std::move(work));
    const std::lock_guard lock(network_.mutex_);
    work();
  }
  std::vector<Step>& Steps() { return capturing_ ? graph_ : network_.steps[self_]; }
  void AddMember(int comm, int key) {
    std::vector<std::pair<int, int>>& members = network_.comms[static_cast<size_t>(comm)].members;
    const std::pair<int, int> member(key, static_cast<int>(self_));
    members.insert(std::ranges::upper_bound(members, member), member);
  }
  NcclComm* Enter(int comm, int key, Handle* parent) {
    AddMember(comm, key);
    return handles_.emplace_back(std::make_unique<Handle>(comm, parent)).get();
  }
  static void RequireReady(const Handle& handle) {
    if (handle.closed) throw Error("a communicator is used that is no more");
    if (handle.turns > 0) throw Error("a communicator is used that is not ready");
  }
  void GiveAlone(NcclComm* comm, OneSided alone, gpu::Stream at) {
    if (depth_ == 0) throw Error("a put or signal outside a group");
    if (at.handle != stream().handle) throw Error("a put in the stream of another process");
    auto* const handle = static_cast<Handle*>(comm);
    RequireReady(*handle);
    alone.comm = handle->comm;
    const std::lock_guard lock(network_.mutex_);
    Steps().push_back({{}, {}, alone});
    used_.push_back(handle);
  }
  void Put(NcclComm* comm, Message message, gpu::Stream at) {
    if (depth_ == 0) throw Error("a message outside a group");
    if (at.handle != stream().handle) throw Error("a message in the stream of another process");
    auto* const handle = static_cast<Handle*>(comm);
    RequireReady(*handle);
    message.comm = handle->comm;
    message.registered = Within(handle->registered, message.data, message.bytes);
    if (!message.registered && !handle->registered.empty()) {
      throw Error("a message of memory that is not registered, where other memory is");
    }
    group_.messages.push_back(message);
    used_.push_back(handle);
  }

  NcclNetwork& network_;
  const size_t self_;
  std::vector<std::unique_ptr<Handle>> handles_;
  std::vector<std::span<std::byte>> memory_;
  std::vector<std::unique_ptr<Window>> windows_;
  int depth_ = 0;
  Step group_;  // under way
  std::vector<Handle*> used_;
  bool capturing_ = false;
  std::vector<Step> graph_;
  std::map<GpuEvent*, size_t> recorded_;  // after how many steps
};

NcclNetwork::NcclNetwork(int processes, Processes how)
    : steps(static_cast<size_t>(processes)),
      how_(how),
      done_(steps.size()),
      waiting_(steps.size()),
      begun_(steps.size()) {
  for (int p = 0; p < processes; ++p) processes_.push_back(std::make_unique<Process>(*this, p));
}
NcclNetwork::~NcclNetwork() = default;

Nccl& NcclNetwork::NcclOf(int p) { return *processes_[static_cast<size_t>(p)]; }
Gpu& NcclNetwork::GpuOf(int p) { return *processes_[static_cast<size_t>(p)]; }
gpu::Stream NcclNetwork::StreamOf(int p) { return processes_[static_cast<size_t>(p)]->stream(); }
int NcclNetwork::OpenOf(int p) const { return processes_[static_cast<size_t>(p)]->open(); }
int NcclNetwork::RegisteredOf(int p) const {
  return processes_[static_cast<size_t>(p)]->registered();
}
int NcclNetwork::DeregisteredOf(int p) const {
  return processes_[static_cast<size_t>(p)]->deregistered;
}
void NcclNetwork::Fail(int p, const std::string& error) {
  const std::lock_guard lock(mutex_);
  processes_[static_cast<size_t>(p)]->failure = error;
}

int NcclNetwork::CommOf(int parent, int number, int color, const NcclCommOptions& options) {
  for (const Split& split : splits_) {
    if (std::tie(split.parent, split.number, split.color) != std::tie(parent, number, color)) {
      continue;
    }
    const Comm& comm = comms[static_cast<size_t>(split.comm)];
    if (comm.name != options.name || comm.max_ctas != options.max_ctas) {
      throw Error("\"" + options.name + "\" is \"" + comm.name + "\" elsewhere");
    }
    return split.comm;
  }
  const auto made = static_cast<int>(comms.size());
  comms.push_back({options.name, options.max_ctas, {}, {}, {}});
  splits_.push_back({parent, number, color, made});
  return made;
}

/// Whether all who are to be members have come.
bool NcclNetwork::Complete(int comm) const {
  const Split& split = splits_[static_cast<size_t>(comm)];
  if (split.parent < 0) return comms[static_cast<size_t>(comm)].members.size() == steps.size();
  if (!Complete(split.parent)) return false;
  size_t members = 0;
  for (const Split& other : splits_) {
    if (other.parent != split.parent || other.number != split.number) continue;
    members += comms[static_cast<size_t>(other.comm)].members.size();
  }
  return members == comms[static_cast<size_t>(split.parent)].members.size();
}

int NcclNetwork::ProcessOf(int comm, int rank) const {
  return comms.at(static_cast<size_t>(comm)).members.at(static_cast<size_t>(rank)).second;
}

void NcclNetwork::Check() const {
  for (const Comm& comm : comms) {
    if ((comm.max_ctas & (comm.max_ctas - 1)) != 0 || comm.max_ctas < 1) {
      throw Error("\"" + comm.name + "\" has " + std::to_string(comm.max_ctas) + " CTAs");
    }
  }
  for (size_t comm = 0; comm < comms.size(); ++comm) {
    if (!Complete(static_cast<int>(comm))) throw Error("not all have joined");
  }
  // Messages by communicator, sender and receiver: the sizes that one end sends and the other
  // expects.
  std::map<std::tuple<int, int, int>, std::pair<std::vector<size_t>, std::vector<size_t>>> pairs;
  for (size_t p = 0; p < steps.size(); ++p) {
    const auto self = static_cast<int>(p);
    for (const Step& step : steps[p]) {
      for (const Message& m : step.messages) {
        const int peer = ProcessOf(m.comm, m.peer);
        if (peer == self) throw Error("process " + std::to_string(p) + " sends to itself");
        const auto key = m.sends ? std::tuple(m.comm, self, peer) : std::tuple(m.comm, peer, self);
        auto& [sent, expected] = pairs[key];
        (m.sends ? sent : expected).push_back(m.bytes);
      }
    }
  }
  for (const auto& [key, sizes] : pairs) {
    if (sizes.first == sizes.second) continue;
    const auto& [comm, from, to] = key;
    throw Error("in \"" + comms[static_cast<size_t>(comm)].name + "\" process " +
                std::to_string(from) + " sends other messages than process " + std::to_string(to) +
                " expects");
  }
}

void NcclNetwork::Run() {
  const std::lock_guard lock(mutex_);
  std::ranges::fill(done_, 0);
  begun_.assign(begun_.size(), false);
  Advance();
  const std::string stuck = Stuck();
  if (!stuck.empty()) throw Error("deadlock:" + stuck);
}

void NcclNetwork::Begin(size_t p) {
  const Step& step = steps[p][done_[p]];
  begun_[p] = true;
  waiting_[p] = step.messages;
  if (step.work) step.work();
}

/// Until nothing can go on.
void NcclNetwork::Advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t p = 0; p < steps.size(); ++p) {
      while (done_[p] < steps[p].size()) {
        if (!begun_[p]) Begin(p);
        const std::vector<Message> messages = waiting_[p];
        waiting_[p].clear();
        for (const Message& m : messages) {
          if (Meet(p, m)) {
            moved = true;
          } else {
            waiting_[p].push_back(m);
          }
        }
        if (!waiting_[p].empty()) break;
        if (const auto& alone = steps[p][done_[p]].alone; alone && !Do(p, *alone)) break;
        ++done_[p];
        begun_[p] = false;
        moved = true;
      }
    }
  }
}

/// Whether the peer is at a group with the counterpart; then it is done.
bool NcclNetwork::Meet(size_t p, const Message& m) {
  if (!Complete(m.comm)) return false;
  const auto peer = static_cast<size_t>(ProcessOf(m.comm, m.peer));
  if (!begun_[peer]) return false;
  for (auto other = waiting_[peer].begin(); other != waiting_[peer].end(); ++other) {
    if (other->comm != m.comm || other->sends == m.sends) continue;
    if (ProcessOf(other->comm, other->peer) != static_cast<int>(p)) continue;
    if (other->bytes != m.bytes) throw Error("messages of two sizes meet");
    if (other->registered != m.registered) throw Error("a message is registered at one end");
    std::memcpy(m.sends ? other->data : m.data, m.sends ? m.data : other->data, m.bytes);
    waiting_[peer].erase(other);
    return true;
  }
  return false;
}

int NcclNetwork::RankOf(int comm, size_t p) const {
  const auto& members = comms.at(static_cast<size_t>(comm)).members;
  const auto at = std::ranges::find_if(
      members, [&](const auto& member) { return member.second == static_cast<int>(p); });
  return static_cast<int>(at - members.begin());
}

/// Whether it could be done.
bool NcclNetwork::Do(size_t p, const OneSided& alone) {
  if (!Complete(alone.comm)) return false;
  Comm& comm = comms[static_cast<size_t>(alone.comm)];
  const int self = RankOf(alone.comm, p);
  if (alone.kind == OneSided::Kind::kAwait) {
    int& signals = comm.signals[{alone.peer, self}];
    if (signals == 0) return false;
    --signals;
    return true;
  }
  if (alone.kind == OneSided::Kind::kPut) {
    const std::span<std::byte> here = comm.windows.at(static_cast<int>(p)),
                               there = comm.windows.at(ProcessOf(alone.comm, alone.peer));
    if (here.size() != there.size()) throw Error("windows of two sizes");
    if (alone.offset + alone.bytes > there.size()) throw Error("a put beyond a window");
    std::memcpy(there.data() + alone.offset, alone.data, alone.bytes);
  }
  ++comm.signals[{self, alone.peer}];
  return true;
}

int NcclNetwork::signals() const {
  int all = 0;
  for (const Comm& comm : comms) {
    for (const auto& [pair, signals] : comm.signals) all += signals;
  }
  return all;
}

std::string NcclNetwork::Stuck() const {
  std::string stuck;
  for (size_t p = 0; p < steps.size(); ++p) {
    if (done_[p] == steps[p].size()) continue;
    if (const auto& alone = steps[p][done_[p]].alone) {
      stuck += "\n  process " + std::to_string(p) + " waits for a signal in \"" +
               comms[static_cast<size_t>(alone->comm)].name + "\" from " +
               std::to_string(ProcessOf(alone->comm, alone->peer));
      continue;
    }
    const Message& m = waiting_[p].front();
    stuck += "\n  process " + std::to_string(p) + (m.sends ? " sends " : " receives ") +
             std::to_string(m.bytes) + " bytes in \"" + comms[static_cast<size_t>(m.comm)].name +
             "\"" + (m.sends ? " to " : " from ") + std::to_string(ProcessOf(m.comm, m.peer));
  }
  return stuck;
}

}  // namespace contraflow
