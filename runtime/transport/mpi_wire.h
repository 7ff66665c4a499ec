#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <memory>

#include "runtime/transport/wire.h"

namespace contraflow {

/// One communicator for each channel of a wire.
using MpiChannels = std::array<MPI_Comm, Wire::kChannels>;

/// Throws Error with MPI's own text unless a call succeeded.
void CheckMpi(int code, const char* call);

/// A wire over MPI between the `processes` of the channels, whose number there is `self`; messages
/// are cut into pieces of at most so many bytes.
std::unique_ptr<Wire> MakeMpiWire(const MpiChannels& channels, int self, int processes,
                                  size_t largest_piece);

}  // namespace contraflow
