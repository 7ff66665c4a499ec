#pragma once

#include <cstddef>
#include <memory>

#include "runtime/launch/rendezvous.h"
#include "runtime/launch/world.h"
#include "runtime/transport/wire.h"

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
  /// MPI_Finalize, which waits for the others; left out where an exception is on its way, or the
  /// job is stopped and the process ended without it.
  ~Mpi();

  /// Where the processes can meet: rank 0 listens at the loopback address if all are on one
  /// machine, otherwise at MASTER_ADDR or an address of its machine that the others can reach, with
  /// a secret made up for this job; MPI carries address and secret to the others. `point` has rank,
  /// size, timeout and mesh. Throws Error as contraflow::Meet does.
  Membership Meet(const World& world, MeetingPoint point);

  /// Most bytes of one MPI message, whose counts are ints.
  static constexpr size_t kLargestPiece = size_t{1} << 30;
  /// Messages of tensors, cut into pieces of at most so many bytes, the same for all processes.
  /// Lives no longer than this.
  std::unique_ptr<Wire> MakeWire(size_t largest_piece = kLargestPiece);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
