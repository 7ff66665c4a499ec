#pragma once

#include <span>

#include "compiler/plan/instruction.h"
#include "kernels/gpu/stream.h"
#include "runtime/core/transport.h"
#include "runtime/gpu/backend.h"

namespace contraflow {

/// One device of this process in a rendezvous: what it issues, and on which of its streams. What
/// the instruction waits for on its own device has been waited for on that stream.
struct Participant {
  Device device;
  const Instruction* instruction;
  gpu::Stream stream;
  GpuBackend* backend;
};

/// How the devices of a plan reach each other. Each call gets all participants that this process
/// has, in the order that IssueOrder gives them (runtime/global_order.h); they leave their streams
/// such that what follows there comes behind the transfer. Called in the plan's global order by the
/// issuing thread; never waits for the device.
class GpuLinks {
 public:
  virtual ~GpuLinks() = default;

  /// A SEND and its RECV; where only one of both ends is in this process, that one.
  virtual void Transfer(std::span<const Participant> ends) = 0;
  /// The exchange of an all-to-all component in an expert group.
  virtual void Exchange(std::span<const Participant> members) = 0;
  /// REDUCE: gradients of a stage become their sums over replicas, members and holders, those of
  /// experts over replicas and holders; added in that order (Transport::Sum), the same bits for
  /// all.
  virtual void Sum(std::span<const Participant> holders) = 0;
  /// Transfers between these calls begin together: none waits for another of the group.
  virtual void BeginGroup() {}
  virtual void EndGroup() {}
  /// Throws Error if the links have failed meanwhile; never waits. Called now and then while the
  /// host waits for the device.
  virtual void Poll() {}
  /// Gives up what is under way, so that nothing waits for ever; from any thread.
  virtual void Abort() {}
};

}  // namespace contraflow
