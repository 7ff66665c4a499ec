#include "tests/runtime/transport/tcp_network.h"

#include <utility>

#include "runtime/transport/wire_transport.h"
#include "tests/runtime/transport/tcp_wires.h"

namespace contraflow {
namespace {

Plan EmptyPlan(int ranks, int replicas, int members) {
  Plan plan;
  plan.ranks = ranks;
  plan.data_parallel = replicas;
  plan.expert_parallel = members;
  plan.programs.resize(static_cast<size_t>(ranks));
  return plan;
}

}  // namespace

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
          std::vector<Stream> streams, bool strict)
      : wire(std::make_unique<LinkedWire>(self, std::move(streams))),
        transport(std::make_unique<WireTransport>(plan, order, *wire, &progress, strict)),
        face(network, *transport) {}

  Progress progress;
  std::unique_ptr<LinkedWire> wire;
  std::unique_ptr<WireTransport> transport;
  Face face;
};

void TcpNetwork::Face::Abort() {
  for (const auto& process : network_.processes_) {
    if (process->transport) process->transport->Abort();
  }
}

TcpNetwork::TcpNetwork(const Plan& plan, ThreadNetwork::Options options, std::string_view order,
                       const std::string& secret)
    : plan_(plan), order_(order, plan_) {
  std::vector<std::vector<Stream>> mesh = StreamMesh(order_.processes(), secret);
  for (int p = 0; p < order_.processes(); ++p) {
    processes_.push_back(std::make_unique<Process>(
        *this, plan_, order_, p, std::move(mesh[static_cast<size_t>(p)]), options.strict));
  }
}

TcpNetwork::TcpNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options,
                       const std::string& secret)
    : TcpNetwork(EmptyPlan(ranks, replicas, members), options, RankOrder::kDefault, secret) {}

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
