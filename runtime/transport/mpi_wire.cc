// A message is two of MPI's: its label, then its bytes, on one communicator with one tag, so they
// match in the order in which sends and receives were begun. A receive begins both at once. Only
// calls that return at once are used: whether a peer is lost is not MPI's to find out, and nobody
// may wait for it in here.

#include "runtime/transport/mpi_wire.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/mpi.h"

namespace contraflow {
namespace {

constexpr int kTag = 0;

/// How a label travels: numbers of fixed sizes, both sides being of one build.
struct PackedLabel {
  static constexpr uint32_t kMagic = 0x43664c62;

  uint32_t magic = kMagic;
  uint32_t sequence = 0;  // of its sender, receiver and channel
  uint64_t bytes = 0;
  int32_t stage = -1, microbatch = -1, part = 0;
  int16_t layer = -1;
  uint8_t op = 0, unused = 0;
};
static_assert(sizeof(PackedLabel) == 32 && std::is_trivially_copyable_v<PackedLabel>);

class MpiWire : public Wire {
 public:
  MpiWire(const MpiChannels& channels, int self, int processes, size_t largest_piece)
      : channels_(channels), self_(self), processes_(processes), largest_piece_(largest_piece) {
    CF_ASSERT(largest_piece > 0 && largest_piece <= Mpi::kLargestPiece);
    for (auto& edges : edges_) edges.resize(static_cast<size_t>(processes));
  }
  ~MpiWire() override;

  int processes() const override { return processes_; }
  int self() const override { return self_; }
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes,
           bool rendezvous) override;
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override;
  Status Test(int ticket) override;
  void Poll() override;
  void Pause() override;
  void Abort() override { aborted_ = true; }

 private:
  /// What is common to the messages of one process and channel.
  struct Edge {
    uint32_t sent = 0, received = 0;  // how many were begun
    bool broken = false;              // labels and bytes no longer match
  };
  struct Operation {
    bool receives = false;
    int peer = -1;
    Channel channel{};
    size_t pending = 0;  // requests that are not complete
    size_t size = 0;     // that a receive expects
    uint32_t sequence = 0;
    bool labelled = false;   // its label has come, and is the one that is due
    bool cancelled = false;  // what is pending; MPI does not bear it twice
    PackedLabel label;       // MPI reads and writes it
    Clock::time_point begun;
  };
  /// A request under way; the MPI_Request itself stands in `requests_`, at the same place.
  struct Owner {
    int ticket = 0;
    bool is_label = false;
  };

  Operation& At(int ticket) { return operations_[static_cast<size_t>(ticket)]; }
  MPI_Comm Of(Channel channel) const { return channels_[static_cast<size_t>(channel)]; }
  Edge& EdgeOf(Channel channel, int peer) {
    return edges_[static_cast<size_t>(channel)][static_cast<size_t>(peer)];
  }
  int Begin(Channel channel, int peer, bool receives);
  void Add(int ticket, bool is_label, MPI_Request request);
  void Progress();
  void Complete(size_t place, const MPI_Status& status, int code);
  void TakeLabel(int ticket, const MPI_Status& status, int code);
  void Break(int ticket);
  void RequireAlive() const {
    if (aborted_) throw Aborted();
  }

  const MpiChannels channels_;
  const int self_, processes_;
  const size_t largest_piece_;
  std::array<std::vector<Edge>, kChannels> edges_;
  std::deque<Operation> operations_;  // by ticket; they stay where they are
  std::vector<int> free_;             // tickets
  std::vector<MPI_Request> requests_;
  std::vector<Owner> owners_;
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  int idle_ = 0;  // calls of Pause since something happened
  std::atomic<bool> aborted_ = false;
};

MpiWire::~MpiWire() {
  // The caller's memory may go now. MPI gives a receive back at once; a send it may still read.
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    const Operation& operation = At(owners_[i].ticket);
    if (operation.receives && !operation.cancelled) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

int MpiWire::Begin(Channel channel, int peer, bool receives) {
  RequireAlive();
  CF_ASSERT(peer >= 0 && peer < processes_);
  if (free_.empty()) {
    free_.push_back(static_cast<int>(operations_.size()));
    operations_.emplace_back();
  }
  const int ticket = free_.back();
  free_.pop_back();
  Operation& operation = At(ticket);
  operation = Operation{};
  operation.receives = receives;
  operation.peer = peer;
  operation.channel = channel;
  idle_ = 0;
  return ticket;
}

void MpiWire::Add(int ticket, bool is_label, MPI_Request request) {
  requests_.push_back(request);
  owners_.push_back({ticket, is_label});
  ++At(ticket).pending;
}

int MpiWire::Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes,
                  bool rendezvous) {
  CF_ASSERT(label.bytes == bytes.size());
  const int ticket = Begin(channel, to, false);
  PackedLabel& packed = At(ticket).label;
  packed.sequence = EdgeOf(channel, to).sent++;
  packed.bytes = label.bytes;
  packed.stage = label.instruction.stage;
  packed.microbatch = label.instruction.microbatch;
  packed.part = label.part;
  packed.layer = label.instruction.layer;
  packed.op = static_cast<uint8_t>(label.instruction.op);
  // Its label and its bytes are received together, so it is enough that the last of them waits.
  MPI_Request request = MPI_REQUEST_NULL;
  const auto send = rendezvous && bytes.empty() ? MPI_Issend : MPI_Isend;
  CheckMpi(send(&packed, sizeof packed, MPI_BYTE, to, kTag, Of(channel), &request), "MPI_Isend");
  Add(ticket, true, request);
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), largest_piece_);
    const auto send_piece = rendezvous ? MPI_Issend : MPI_Isend;
    CheckMpi(send_piece(bytes.data(), static_cast<int>(count), MPI_BYTE, to, kTag, Of(channel),
                        &request),
             "MPI_Isend");
    Add(ticket, false, request);
    bytes = bytes.subspan(count);
  }
  return ticket;
}

int MpiWire::Receive(Channel channel, int from, std::span<std::byte> bytes) {
  const int ticket = Begin(channel, from, true);
  Operation& operation = At(ticket);
  operation.size = bytes.size();
  operation.sequence = EdgeOf(channel, from).received++;
  MPI_Request request = MPI_REQUEST_NULL;
  CheckMpi(MPI_Irecv(&operation.label, sizeof operation.label, MPI_BYTE, from, kTag, Of(channel),
                     &request),
           "MPI_Irecv");
  Add(ticket, true, request);
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), largest_piece_);
    CheckMpi(MPI_Irecv(bytes.data(), static_cast<int>(count), MPI_BYTE, from, kTag, Of(channel),
                       &request),
             "MPI_Irecv");
    Add(ticket, false, request);
    bytes = bytes.subspan(count);
  }
  return ticket;
}

/// From now on what comes on this edge cannot be told apart. What was begun for the bytes of this
/// receive is taken back: they may be another number, or none, and its memory belongs to its caller
/// as soon as it is done.
void MpiWire::Break(int ticket) {
  Operation& operation = At(ticket);
  operation.cancelled = true;
  EdgeOf(operation.channel, operation.peer).broken = true;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (owners_[i].ticket != ticket || requests_[i] == MPI_REQUEST_NULL) continue;
    CheckMpi(MPI_Cancel(&requests_[i]), "MPI_Cancel");
  }
}

void MpiWire::TakeLabel(int ticket, const MPI_Status& status, int code) {
  Operation& operation = At(ticket);
  operation.begun = Clock::now();
  int count = 0;
  if (code == MPI_SUCCESS) {
    CheckMpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  }
  operation.labelled = !EdgeOf(operation.channel, operation.peer).broken &&
                       count == sizeof(PackedLabel) &&
                       operation.label.magic == PackedLabel::kMagic &&
                       operation.label.sequence == operation.sequence;
  if (!operation.labelled || operation.label.bytes != operation.size) Break(ticket);
}

void MpiWire::Complete(size_t place, const MPI_Status& status, int code) {
  const Owner owner = owners_[place];
  Operation& operation = At(owner.ticket);
  --operation.pending;
  if (operation.receives) {
    if (owner.is_label) {
      TakeLabel(owner.ticket, status, code);
      return;
    }
    // Bytes that do not fit their receive belong to an edge that is broken, as its label tells.
    if (code == MPI_ERR_TRUNCATE) return;
  }
  CheckMpi(code, operation.receives ? "MPI_Irecv" : "MPI_Isend");
}

void MpiWire::Progress() {
  if (requests_.empty()) return;
  completed_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                completed_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) CheckMpi(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  idle_ = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const int error = code == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
    Complete(static_cast<size_t>(completed_[i]), statuses_[i], error);
  }
  // Those that are complete are null now; the others close up.
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    owners_[kept++] = owners_[i];
  }
  requests_.resize(kept);
  owners_.resize(kept);
}

Wire::Status MpiWire::Test(int ticket) {
  RequireAlive();
  Operation& operation = At(ticket);
  if (operation.pending > 0) Progress();
  if (operation.pending > 0) return {};
  Status status;
  status.done = true;
  if (operation.receives) {
    const PackedLabel& packed = operation.label;
    if (!operation.labelled) {
      throw Error("messages of process " + std::to_string(operation.peer) +
                  " are out of step since one of another size than was expected");
    }
    status.label.instruction.op = static_cast<Op>(packed.op);
    status.label.instruction.layer = packed.layer;
    status.label.instruction.stage = packed.stage;
    status.label.instruction.microbatch = packed.microbatch;
    status.label.part = packed.part;
    status.label.bytes = packed.bytes;
    status.begun = operation.begun;
  }
  free_.push_back(ticket);
  return status;
}

void MpiWire::Poll() {
  RequireAlive();
  Progress();
}

void MpiWire::Pause() {
  RequireAlive();
  // Others of the job may need this core to send what is waited for here.
  constexpr int kYields = 16;
  if (idle_ < kYields) {
    sched_yield();
  } else {
    const int doublings = std::min((idle_ - kYields) / 4, 4);
    std::this_thread::sleep_for(
        std::min(std::chrono::microseconds(20 << doublings), std::chrono::microseconds(200)));
  }
  idle_ = std::min(idle_ + 1, 1000);
}

}  // namespace

void CheckMpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

std::unique_ptr<Wire> MakeMpiWire(const MpiChannels& channels, int self, int processes,
                                  size_t largest_piece) {
  return std::make_unique<MpiWire>(channels, self, processes, largest_piece);
}

}  // namespace contraflow
