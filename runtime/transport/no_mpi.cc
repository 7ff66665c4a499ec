// What a build without MPI has in the place of mpi.cc.

#include "compiler/plan/error.h"
#include "runtime/transport/mpi.h"

namespace contraflow {
namespace {

[[noreturn]] void Refuse() {
  throw Error(
      "this build has no MPI: use `transport` tcp, or install libopenmpi-dev and build again with "
      "-DCF_MPI=ON");
}

}  // namespace

struct Mpi::State {};

bool HasMpi() { return false; }

Mpi::Mpi(const World&) { Refuse(); }

Mpi::~Mpi() = default;

Membership Mpi::Meet(const World&, MeetingPoint) { Refuse(); }

std::unique_ptr<Wire> Mpi::MakeWire(size_t) { Refuse(); }

}  // namespace contraflow
