#pragma once

#include <chrono>
#include <memory>

#include "runtime/transport.h"

namespace contraflow {

/// Joins ranks that are threads of one process, over mailboxes and condition variables: a waiting
/// rank takes no processor time. Each replica of the pipeline is a net of its own; only Sum joins
/// them.
class ThreadNetwork {
 public:
  struct Options {
    /// Rendezvous: Post returns only when every message of the group was taken by its receiver, the
    /// strictest semantics a plan is verified for. Otherwise a SEND never waits.
    bool strict = false;
    /// A rank that waits while no rank of the network has called for so long gives up with an Error
    /// that tells who waits for whom.
    std::chrono::milliseconds timeout{120'000};
  };

  ThreadNetwork(int ranks, int replicas, Options options);
  ~ThreadNetwork();

  /// The face of one rank, which lives as long as the network.
  Transport& At(int replica, int rank);

  /// Throws Error if a message was sent that nobody has received.
  void CheckEmpty() const;

 private:
  class Face;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
