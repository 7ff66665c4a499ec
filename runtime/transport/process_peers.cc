#include "runtime/transport/process_peers.h"

#include "compiler/plan/error.h"

namespace contraflow {

ProcessPeers::ProcessPeers(const Plan& plan, const RankOrder& order, Wire& wire, Progress* progress)
    : order_(order), wire_(wire), progress_(progress), device_(order.DeviceOf(wire.self())) {
  CF_ASSERT(order.processes() == wire.processes());
  sizes_.ranks = plan.ranks;
  sizes_.data_parallel = plan.data_parallel;
  sizes_.expert_parallel = plan.expert_parallel;
}

std::string ProcessPeers::NameOf(Device other) const { return contraflow::NameOf(sizes_, other); }

void ProcessPeers::Move() const {
  if (progress_ != nullptr) progress_->Move();
}

Wire::Status ProcessPeers::Await(int process, int ticket) const {
  Wire::Status status;
  WaitFor(process, -1, [&] { return (status = wire_.Test(ticket)).done; });
  return status;
}

}  // namespace contraflow
