#include "tests/nccl_network.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr int kWorld = 0;

struct Handle : NcclComm {
  Handle(int the_comm, int the_rank) : comm(the_comm), rank(the_rank) {}
  const int comm, rank;  // its own key there
  int splits = 0;
  bool finalized = false, destroyed = false;
};

std::string ToString(const NcclNetwork::Comm& comm, int process, const NcclNetwork::Message& m,
                     int peer) {
  return "process " + std::to_string(process) + (m.sends ? " sends " : " receives ") +
         std::to_string(m.bytes) + " bytes in \"" + comm.name + "\"" +
         (m.sends ? " to " : " from ") + std::to_string(peer);
}

}  // namespace

/// NCCL, GPU and stream of one process.
class NcclNetwork::Process : public Nccl, public EmulatedGpu, public emulator::Queue {
 public:
  Process(NcclNetwork& network, int process) : network_(network), process_(process) {}

  int open() const {
    return static_cast<int>(std::count_if(handles_.begin(), handles_.end(),
                                          [](const auto& handle) { return !handle->destroyed; }));
  }
  std::string name() const override { return "network"; }
  gpu::Stream stream() { return {static_cast<emulator::Queue*>(this), 8}; }

  // Of the GPU: what a stream is given is a step.
  void Add(const char*, std::function<void()> work) override { Steps().push_back({{}, work}); }
  gpu::Stream NewStream(int, Priority, const std::string&) override { return stream(); }
  GpuEvent* NewEvent() override { return nullptr; }
  void Record(GpuEvent*, gpu::Stream) override {}
  bool Done(GpuEvent*) override { return true; }
  void Zero(gpu::Stream, void* at, size_t bytes) override {
    Add("Zero", [=] { std::memset(at, 0, bytes); });
  }

  // Of NCCL.
  std::string NewId() override { return "the one"; }
  NcclComm* Join(const std::string& id, int rank, int size,
                 const NcclCommOptions& options) override {
    if (id != "the one" || size != static_cast<int>(network_.steps.size())) {
      throw Error("joins another job");
    }
    return Enter(network_.CommOf(-1, 0, 0, options), rank);
  }
  NcclComm* Split(NcclComm* parent, int color, int key, const NcclCommOptions& options) override {
    auto* const from = static_cast<Handle*>(parent);
    return Enter(network_.CommOf(from->comm, from->splits++, color, options), key);
  }
  void GroupStart() override {
    if (depth_++ == 0) Steps().push_back({});
  }
  void GroupEnd() override {
    if (depth_ == 0) throw Error("a group ends that has not begun");
    --depth_;
    // A group of nothing is nothing.
    if (depth_ == 0 && Steps().back().messages.empty()) Steps().pop_back();
  }
  void Send(NcclComm* comm, const void* data, size_t bytes, int to, gpu::Stream at) override {
    Put(comm, {true, 0, to, static_cast<std::byte*>(const_cast<void*>(data)), bytes}, at);
  }
  void Recv(NcclComm* comm, void* data, size_t bytes, int from, gpu::Stream at) override {
    Put(comm, {false, 0, from, static_cast<std::byte*>(data), bytes}, at);
  }
  bool Ready(NcclComm*) override { return true; }
  void Check(NcclComm*) override {}
  void Finalize(NcclComm* comm) override { static_cast<Handle*>(comm)->finalized = true; }
  void Destroy(NcclComm* comm) noexcept override {
    auto* const handle = static_cast<Handle*>(comm);
    handle->destroyed = handle->finalized;
  }
  void Abort(NcclComm* comm) noexcept override { static_cast<Handle*>(comm)->destroyed = true; }

 private:
  std::vector<Step>& Steps() { return network_.steps[static_cast<size_t>(process_)]; }
  NcclComm* Enter(int comm, int key) {
    network_.comms[static_cast<size_t>(comm)].members.emplace_back(key, process_);
    return handles_.emplace_back(std::make_unique<Handle>(comm, key)).get();
  }
  void Put(NcclComm* comm, Message message, gpu::Stream at) {
    if (depth_ == 0) throw Error("a message outside a group");
    if (at.handle != stream().handle) throw Error("a message in another stream");
    message.comm = static_cast<Handle*>(comm)->comm;
    Steps().back().messages.push_back(message);
  }

  NcclNetwork& network_;
  const int process_;
  int depth_ = 0;
  std::vector<std::unique_ptr<Handle>> handles_;
};

NcclNetwork::NcclNetwork(int processes) : steps(static_cast<size_t>(processes)) {
  for (int p = 0; p < processes; ++p) processes_.push_back(std::make_unique<Process>(*this, p));
}
NcclNetwork::~NcclNetwork() = default;

Nccl& NcclNetwork::NcclOf(int p) { return *processes_[static_cast<size_t>(p)]; }
Gpu& NcclNetwork::GpuOf(int p) { return *processes_[static_cast<size_t>(p)]; }
int NcclNetwork::OpenOf(int p) const { return processes_[static_cast<size_t>(p)]->open(); }
gpu::Stream NcclNetwork::StreamOf(int p) { return processes_[static_cast<size_t>(p)]->stream(); }

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
  comms.push_back({options.name, options.max_ctas, {}});
  splits_.push_back({parent, number, color, made});
  return made;
}

int NcclNetwork::ProcessOf(int comm, int rank) const {
  std::vector<std::pair<int, int>> members = comms.at(static_cast<size_t>(comm)).members;
  std::sort(members.begin(), members.end());
  return members.at(static_cast<size_t>(rank)).second;
}

void NcclNetwork::Check() const {
  for (const Comm& comm : comms) {
    if ((comm.max_ctas & (comm.max_ctas - 1)) != 0 || comm.max_ctas < 1) {
      throw Error("\"" + comm.name + "\" has " + std::to_string(comm.max_ctas) + " CTAs");
    }
  }
  if (comms[kWorld].members.size() != steps.size()) throw Error("not all have joined");
  // By communicator, sender and receiver: the sizes that one end sends and the other expects.
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
  std::vector<size_t> head(steps.size(), 0);
  // Messages of the group at the head that have not met theirs, in order of issue.
  std::vector<std::vector<Message>> waiting(steps.size());
  const auto next = [&](size_t p) {
    ++head[p];
    if (head[p] < steps[p].size()) waiting[p] = steps[p][head[p]].messages;
  };
  for (size_t p = 0; p < steps.size(); ++p) {
    if (!steps[p].empty()) waiting[p] = steps[p][0].messages;
  }
  const auto meet = [&](size_t p, const Message& m) {
    const auto peer = static_cast<size_t>(ProcessOf(m.comm, m.peer));
    for (auto other = waiting[peer].begin(); other != waiting[peer].end(); ++other) {
      if (other->comm != m.comm || other->sends == m.sends) continue;
      if (ProcessOf(other->comm, other->peer) != static_cast<int>(p)) continue;
      if (other->bytes != m.bytes) throw Error("messages of two sizes meet");
      std::memcpy(m.sends ? other->data : m.data, m.sends ? m.data : other->data, m.bytes);
      waiting[peer].erase(other);
      return true;
    }
    return false;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t p = 0; p < steps.size(); ++p) {
      while (head[p] < steps[p].size()) {
        const Step& step = steps[p][head[p]];
        if (step.work) step.work();
        for (size_t m = 0; m < waiting[p].size();) {
          const Message message = waiting[p][m];
          if (!meet(p, message)) {
            ++m;
            continue;
          }
          waiting[p].erase(waiting[p].begin() + static_cast<ptrdiff_t>(m));
          moved = true;
        }
        if (!waiting[p].empty()) break;
        next(p);
        moved = true;
      }
    }
  }
  std::string stuck;
  for (size_t p = 0; p < steps.size(); ++p) {
    if (head[p] == steps[p].size()) continue;
    const Message& m = waiting[p].front();
    stuck += "\n  " + ToString(comms[static_cast<size_t>(m.comm)], static_cast<int>(p), m,
                               ProcessOf(m.comm, m.peer));
  }
  if (!stuck.empty()) throw Error("deadlock:" + stuck);
}

}  // namespace contraflow
