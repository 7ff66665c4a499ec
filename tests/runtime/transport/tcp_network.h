#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// What ThreadNetwork is to threads, for processes that are joined by TCP wires, all of them in
/// this program: each is used by one thread at a time. Abort at one of them is one at all.
class TcpNetwork {
 public:
  /// Timeouts are not a transport's between processes.
  TcpNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options,
             const std::string& secret = "");
  TcpNetwork(const Plan& plan, ThreadNetwork::Options options,
             std::string_view order = RankOrder::kDefault, const std::string& secret = "");
  ~TcpNetwork();

  Transport& At(Device device);
  Progress& ProgressOf(Device device);
  /// The process ends: its connections are closed.
  void End(Device device);

 private:
  class Face;
  struct Process;

  const Plan plan_;
  const RankOrder order_;
  std::vector<std::unique_ptr<Process>> processes_;
};

/// The same over TLS.
struct TlsNetwork : TcpNetwork {
  TlsNetwork(int ranks, int replicas, int members, ThreadNetwork::Options options)
      : TcpNetwork(ranks, replicas, members, options, "a secret") {}
};

}  // namespace contraflow
