#include "runtime/transport/mpi.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/digest.h"
#include "runtime/transport/local_address.h"
#include "runtime/transport/mpi_wire.h"

namespace contraflow {
namespace {

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

/// Started without a launcher, MPI would make a world of one process, and a daemon for it.
void RequireLauncher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (IsSet(variable)) return;
  }
  throw Error(
      "`transport` mpi needs an MPI launcher (mpirun, or srun with PMIx); use `transport` tcp");
}

/// On one machine OpenMPI would read the sender's memory, which is forbidden in many containers,
/// and complain about each message there, or where the sender was killed meanwhile. Through memory
/// that both share it is as fast if the pieces are large. An environment or mpirun that says
/// otherwise stands.
void PreferSharedMemory() {
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0);
  setenv("OMPI_MCA_btl_vader_max_send_size", "262144", /*overwrite=*/0);
}

/// Text of a fixed size, for all processes to send the same number of bytes; what is longer is cut
/// off.
using Block = std::array<char, 1024>;

Block BlockOf(std::string_view text) {
  Block block{};
  text.copy(block.data(), block.size() - 1);
  return block;
}

std::string TextOf(const Block& block) {
  return std::string(block.data(), strnlen(block.data(), block.size()));
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

/// Nobody watches over the job yet, so nothing may wait for ever.
void Await(MPI_Request* request, Clock::time_point deadline) {
  for (int done = 0;;) {
    CheckMpi(MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
    if (Clock::now() > deadline) {
      throw Error(
          "timed out waiting for the other processes of the job to meet over MPI; see whether all "
          "of them are running, or raise `rendezvous_timeout`");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Gives everyone the text of process 0.
std::string Spread(std::string_view text, Clock::time_point deadline) {
  Block block = BlockOf(text);
  MPI_Request request = MPI_REQUEST_NULL;
  CheckMpi(MPI_Ibcast(block.data(), static_cast<int>(block.size()), MPI_BYTE, 0, MPI_COMM_WORLD,
                      &request),
           "MPI_Ibcast");
  Await(&request, deadline);
  return TextOf(block);
}

/// Everyone's text, by rank.
std::vector<std::string> Collect(std::string_view text, int size, Clock::time_point deadline) {
  const Block own = BlockOf(text);
  std::vector<Block> blocks(static_cast<size_t>(size));
  MPI_Request request = MPI_REQUEST_NULL;
  CheckMpi(MPI_Iallgather(own.data(), static_cast<int>(own.size()), MPI_BYTE, blocks.data(),
                          static_cast<int>(own.size()), MPI_BYTE, MPI_COMM_WORLD, &request),
           "MPI_Iallgather");
  Await(&request, deadline);
  std::vector<std::string> texts;
  for (const Block& block : blocks) texts.push_back(TextOf(block));
  return texts;
}

bool AllOnOneMachine(int size) {
  MPI_Comm machine = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
           "MPI_Comm_split_type");
  int here = 0;
  CheckMpi(MPI_Comm_size(machine, &here), "MPI_Comm_size");
  CheckMpi(MPI_Comm_free(&machine), "MPI_Comm_free");
  return here == size;
}

constexpr std::string_view kMeet = "meet";

}  // namespace

struct Mpi::State {
  int exceptions = std::uncaught_exceptions();
  int rank = 0, size = 1;
  bool one_machine = false;
  MpiChannels channels{};
};

bool HasMpi() { return true; }

Mpi::Mpi(const World& world) : state_(std::make_unique<State>()) {
  RequireLauncher();
  int initialized = 0;
  CheckMpi(MPI_Initialized(&initialized), "MPI_Initialized");
  CF_ASSERT(!initialized);
  PreferSharedMemory();
  int provided = MPI_THREAD_SINGLE;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  // Communicators made from it inherit this.
  CheckMpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error("this MPI cannot be used by a process with threads; use `transport` tcp");
  }
  CheckMpi(MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank), "MPI_Comm_rank");
  CheckMpi(MPI_Comm_size(MPI_COMM_WORLD, &state_->size), "MPI_Comm_size");
  if (state_->rank != world.rank || state_->size != world.size) {
    throw Error("this is process " + std::to_string(state_->rank) + " of " +
                std::to_string(state_->size) + " for MPI, but " + std::to_string(world.rank) +
                " of " + std::to_string(world.size) +
                " by its environment; start it by the mpirun of the MPI it was built with, or by "
                "srun --mpi=pmix, and without RANK and WORLD_SIZE; or use `transport` tcp");
  }
  state_->one_machine = AllOnOneMachine(state_->size);
  for (MPI_Comm& channel : state_->channels) {
    CheckMpi(MPI_Comm_dup(MPI_COMM_WORLD, &channel), "MPI_Comm_dup");
  }
}

Mpi::~Mpi() {
  // On the way out of an error the others may never come to their MPI_Finalize.
  if (std::uncaught_exceptions() == state_->exceptions) MPI_Finalize();
}

Membership Mpi::Meet(const World& world, MeetingPoint point) {
  const Clock::time_point deadline = Clock::now() + point.timeout;
  point.address = {"127.0.0.1", 0};
  if (!state_->one_machine) {
    const std::vector<std::string> addresses = LocalAddresses();
    std::string own;
    for (const std::string& address : addresses) own += address + "\n";
    std::vector<std::vector<std::string>> machines;
    for (const std::string& all : Collect(own, state_->size, deadline)) {
      // Those of process 0's machine say the same as it.
      if (all != own) machines.push_back(Lines(all));
    }
    point.address = {world.master_address, world.master_port};
    if (point.address.host.empty()) {
      point.address.host = ReachableAddress(addresses, machines);
    }
  }
  if (state_->rank != 0) {
    const std::string text = Spread("", deadline);
    const std::vector<std::string> told = Lines(text);
    if (told.size() != 4 || told[0] != kMeet) throw Error(text);
    point.address = {told[1], std::stoi(told[2])};
    point.secret = told[3];
    return contraflow::Meet(point);
  }
  bool spread = false;
  point.secret = Hex(Sha256(RandomBytes(32)));
  point.ready = [&](const Address& address) {
    spread = true;
    Spread(std::string(kMeet) + "\n" + address.host + "\n" + std::to_string(address.port) + "\n" +
               point.secret,
           deadline);
  };
  try {
    return contraflow::Meet(point);
  } catch (const Error& error) {
    // The others have not heard of a place to meet, and wait to be told.
    if (!spread) Spread(error.what(), deadline);
    throw;
  }
}

std::unique_ptr<Wire> Mpi::MakeWire(size_t largest_piece) {
  return MakeMpiWire(state_->channels, state_->rank, state_->size, largest_piece);
}

}  // namespace contraflow
