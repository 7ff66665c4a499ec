#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/launch/world.h"
#include "runtime/transport/tcp_wire.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// Connections between every two of so many processes: [a][b] is the end that a has to b.
std::vector<std::vector<Socket>> SocketMesh(int processes);

/// What ThreadNetwork is to threads, for processes that are joined by TCP wires, all of them in
/// this program: each is used by one thread at a time. Abort at one of them is one at all.
class TcpNetwork {
 public:
  /// Timeouts are not a transport's between processes.
  TcpNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options,
             std::string_view order = RankOrder::kDefault);
  TcpNetwork(const Plan& plan, ThreadNetwork::Options options,
             std::string_view order = RankOrder::kDefault);
  ~TcpNetwork();

  Transport& At(Device device);
  Progress& ProgressOf(Device device);
  /// The process ends: its connections are closed.
  void End(Device device);

 private:
  class Face;
  struct Process;

  const RankOrder order_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace contraflow
