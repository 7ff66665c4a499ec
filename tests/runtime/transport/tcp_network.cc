#include "tests/runtime/transport/tcp_network.h"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/transport/process_transport.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kNoGrace{0};

Plan EmptyPlan(int ranks, int replicas, int members) {
  Plan plan;
  plan.ranks = ranks;
  plan.data_parallel = replicas;
  plan.expert_parallel = members;
  plan.programs.resize(static_cast<size_t>(ranks));
  return plan;
}

}  // namespace

std::vector<std::vector<Socket>> SocketMesh(int processes) {
  const auto count = static_cast<size_t>(processes);
  std::vector<std::vector<Socket>> mesh(count);
  for (auto& ends : mesh) ends.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      int fds[2];
      CF_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
      mesh[a][b] = Socket(fds[0]);
      mesh[b][a] = Socket(fds[1]);
    }
  }
  return mesh;
}

/// A transport of one process; its Abort is that of all.
class TcpNetwork::Face : public Transport {
 public:
  Face(TcpNetwork& network, Transport& inner) : network_(network), inner_(inner) {}

  void Post(std::span<Transfer* const> group) override { inner_.Post(group); }
  bool Done(Transfer& transfer) override { return inner_.Done(transfer); }
  void Wait(Transfer& transfer) override { inner_.Wait(transfer); }
  void Poll() override { inner_.Poll(); }
  Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                        std::span<float> values) override {
    return inner_.Sum(reduce, over, holders, values);
  }
  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    inner_.AllToAll(instruction, send, receive);
  }
  void Abort() override;

 private:
  TcpNetwork& network_;
  Transport& inner_;
};

struct TcpNetwork::Process {
  Process(TcpNetwork& network, const Plan& plan, const RankOrder& order, int self,
          std::vector<Socket> connections, bool strict)
      : wire(std::make_unique<TcpWire>(self, std::move(connections), nullptr, kNoGrace)),
        transport(std::make_unique<ProcessTransport>(plan, order, *wire, &progress,
                                                     ProcessTransport::Options{.strict = strict})),
        face(network, *transport) {}

  Progress progress;
  std::unique_ptr<TcpWire> wire;
  std::unique_ptr<ProcessTransport> transport;
  Face face;
};

void TcpNetwork::Face::Abort() {
  for (const auto& process : network_.processes_) {
    if (process->transport) process->transport->Abort();
  }
}

TcpNetwork::TcpNetwork(const Plan& plan, ThreadNetwork::Options options, std::string_view order)
    : order_(order, plan) {
  std::vector<std::vector<Socket>> mesh = SocketMesh(order_.processes());
  for (int p = 0; p < order_.processes(); ++p) {
    processes_.push_back(std::make_unique<Process>(
        *this, plan, order_, p, std::move(mesh[static_cast<size_t>(p)]), options.strict));
  }
}

TcpNetwork::TcpNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options,
                       std::string_view order)
    : TcpNetwork(EmptyPlan(ranks, replicas, members), options, order) {}

TcpNetwork::~TcpNetwork() = default;

Transport& TcpNetwork::At(Device device) {
  return processes_[static_cast<size_t>(order_.ProcessOf(device))]->face;
}

Progress& TcpNetwork::ProgressOf(Device device) {
  return processes_[static_cast<size_t>(order_.ProcessOf(device))]->progress;
}

void TcpNetwork::End(Device device) {
  Process& process = *processes_[static_cast<size_t>(order_.ProcessOf(device))];
  process.transport.reset();
  process.wire.reset();
}

}  // namespace contraflow
