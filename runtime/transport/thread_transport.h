#pragma once

#include <chrono>
#include <memory>

#include "runtime/core/transport.h"

namespace contraflow {

/// Joins devices that are threads of one process: they copy straight from each other's memory, and
/// a waiting one takes no processor time. Once every edge, reduction and expert group has been used
/// a first time, no call allocates memory. Each member of the expert group of each replica has a
/// net of its own for messages; Sum and AllToAll join them. A transfer and its bytes must live
/// until it is done, or all threads of the run have ended.
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
  class Face;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
