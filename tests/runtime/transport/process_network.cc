#include "tests/runtime/transport/process_network.h"

#include <string>

#include "runtime/transport/shm_wire.h"
#include "runtime/transport/wire_transport.h"

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
class ProcessNetwork::Face : public Transport {
 public:
  Face(ProcessNetwork& network, Transport& inner) : network_(network), inner_(inner) {}

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
  ProcessNetwork& network_;
  Transport& inner_;
};

struct ProcessNetwork::Process {
  Process(ProcessNetwork& network, int self, bool strict)
      : wire(network.memory_, self, [](int p) { return "process " + std::to_string(p); }),
        transport(network.plan_, network.order_, wire, &progress, strict),
        face(network, transport) {}

  Progress progress;
  ShmWire wire;
  WireTransport transport;
  Face face;
};

void ProcessNetwork::Face::Abort() {
  for (const auto& process : network_.processes_) {
    process->transport.Abort();
  }
}

ProcessNetwork::ProcessNetwork(const Plan& plan, ThreadNetwork::Options options,
                               std::string_view order)
    : plan_(plan), order_(order, plan_), memory_(order_.processes(), 4096) {
  for (int p = 0; p < order_.processes(); ++p) {
    processes_.push_back(std::make_unique<Process>(*this, p, options.strict));
  }
}

ProcessNetwork::ProcessNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options)
    : ProcessNetwork(EmptyPlan(ranks, replicas, members), options) {}

ProcessNetwork::~ProcessNetwork() = default;

Transport& ProcessNetwork::At(Device device) {
  return processes_[static_cast<size_t>(order_.ProcessOf(device))]->face;
}

Progress& ProcessNetwork::ProgressOf(Device device) {
  return processes_[static_cast<size_t>(order_.ProcessOf(device))]->progress;
}

}  // namespace contraflow
