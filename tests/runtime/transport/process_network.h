#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/transport/shared_memory.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// The ThreadNetwork of processes that share memory, all of them in this program:
/// each is used by one thread at a time. Abort at one of them is one at all.
class ProcessNetwork {
 public:
  /// Timeouts are not a transport's between processes.
  ProcessNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options);
  ProcessNetwork(const Plan& plan, ThreadNetwork::Options options,
                 std::string_view order = RankOrder::kDefault);
  ~ProcessNetwork();

  Transport& At(Device device);
  Progress& ProgressOf(Device device);

 private:
  class Face;
  struct Process;

  const Plan plan_;
  const RankOrder order_;
  const SharedMemory memory_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace contraflow
