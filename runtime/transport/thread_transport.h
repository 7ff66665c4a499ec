#pragma once

#include <chrono>
#include <memory>

#include "compiler/plan/plan.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// Joins the devices of a plan that are threads of one process: a wire between threads, and a
/// WireTransport for each of them.
class ThreadNetwork {
 public:
  struct Options {
    /// Rendezvous: Post returns only when every message of the group was taken by its receiver, the
    /// strictest semantics a plan is verified for. Otherwise Post never waits.
    bool strict = false;
    /// A device that waits while no device of the network has called for so long gives up, and
    /// aborts the run, with an Error that tells who waits for whom.
    std::chrono::milliseconds timeout{120'000};
  };

  ThreadNetwork(int ranks, int replicas, int members, Options options);
  ~ThreadNetwork();

  /// The face of one device, which lives as long as the network.
  Transport& At(Device device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
