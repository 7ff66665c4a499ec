#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"
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
    /// Called with what is wrong where a device hangs in its own work, which nothing else ends: it
    /// ends the process. Empty: the run waits.
    std::function<void(const std::exception_ptr& error)> stuck = nullptr;
  };

  ThreadNetwork(int ranks, int replicas, int members, const Options& options);
  ~ThreadNetwork();

  /// The face of one device, which lives as long as the network.
  Transport& At(Device device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
