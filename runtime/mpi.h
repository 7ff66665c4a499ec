#pragma once

#include <memory>
#include <string>

#include "runtime/rendezvous.h"
#include "runtime/wire.h"
#include "runtime/world.h"

namespace contraflow {

/// Whether this build has MPI. Without it all that follows throws Error with the remedy.
bool HasMpi();

/// MPI from its start to its end, once in a process, used by one thread. Each of the wire's
/// channels is a communicator of its own; messages match in order, no tags.
class Mpi {
 public:
  /// MPI_Init. Throws Error if this process was not started by an MPI launcher, or the world it
  /// gives is not the one of the environment.
  explicit Mpi(const World& world);
  Mpi(const Mpi&) = delete;
  /// MPI_Finalize, which waits for the others; not reached where the job is stopped.
  ~Mpi();

  /// Where the processes can meet: rank 0 listens at MASTER_ADDR or an address of its machine (the
  /// loopback one if all are on one machine), with a secret made up for this job; MPI carries
  /// address and secret to the others. `point` has rank, size, timeout and mesh.
  Membership Meet(const World& world, MeetingPoint point);

  /// Messages of tensors. Lives no longer than this.
  std::unique_ptr<Wire> MakeWire();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
