#include "runtime/nccl/links.h"

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"

namespace contraflow {
namespace {

/// Alignment of slices in elements, for loads of 16 bytes.
constexpr size_t kWidth = 4;

/// Start of slice `place` of `count`.
size_t BeginOf(size_t elements, size_t count, size_t place) {
  const size_t slice = ((elements + count - 1) / count + kWidth - 1) / kWidth * kWidth;
  return std::min(slice * place, elements);
}

std::span<float> Slice(std::span<float> values, size_t count, size_t place) {
  const size_t begin = BeginOf(values.size(), count, place);
  return values.subspan(begin, BeginOf(values.size(), count, place + 1) - begin);
}

}  // namespace

NcclSum::NcclSum(const Plan& plan, const RankOrder& order, int process, NcclComms& comms)
    : plan_(plan),
      order_(order),
      process_(process),
      holders_(HoldersOfStage(plan)),
      comms_(comms) {}

void NcclSum::Reserve(Gpu& gpu, size_t elements) {
  round_ = std::min(elements, kRound);
  // The slices of all others; rounded up, theirs may be a little more than the round has.
  const size_t most = static_cast<size_t>(order_.processes()) * kWidth + round_;
  work_ = reinterpret_cast<float*>(gpu.Allocate(most * sizeof(float)));
}

const NcclSum::Parts& NcclSum::PartsOf(int stage, Transport::Over over) {
  const auto [at, missing] = parts_.try_emplace({stage, over});
  Parts& parts = at->second;
  if (!missing) return parts;
  const Device self = order_.DeviceOf(process_);
  const bool same = over == Transport::Over::kSameMember;
  for (int replica = 0; replica < plan_.data_parallel; ++replica) {
    for (int member = 0; member < plan_.expert_parallel; ++member) {
      if (same && member != self.member) continue;
      for (const int holder : holders_[static_cast<size_t>(stage)]) {
        const int process = order_.ProcessOf({replica, member, holder});
        if (process == process_) parts.place = parts.processes.size();
        parts.processes.push_back(process);
      }
    }
  }
  CF_ASSERT(parts.processes[parts.place] == process_);
  return parts;
}

void NcclSum::Connect(int stage, Transport::Over over, gpu::Stream stream) {
  const Parts& parts = PartsOf(stage, over);
  CF_ASSERT(round_ >= 1);
  NcclComm* const comm = comms_[NcclComms::Use::kSums];
  comms_.ExchangeInGroups(parts.processes.size(), parts.place, 1, [&](size_t to, size_t from) {
    comms_.nccl().Send(comm, work_, sizeof(float), parts.processes[to], stream);
    // The value that comes is for nobody: all may write it to the same place.
    comms_.nccl().Recv(comm, work_ + kWidth, sizeof(float), parts.processes[from], stream);
  });
}

void NcclSum::Run(int stage, Transport::Over over, std::span<float> values, gpu::Stream stream) {
  const Parts& parts = PartsOf(stage, over);
  if (parts.processes.size() < 2) return;
  while (!values.empty()) {
    const size_t size = std::min(values.size(), round_);
    CF_ASSERT(size > 0);
    Round(parts, values.first(size), stream);
    values = values.subspan(size);
  }
}

// Each time a process has twice as much: the parts of those after it, in a ring. So it is
// connected to few of them, however many there are.
void NcclSum::Gather(double* values, size_t n, gpu::Stream stream) {
  NcclComm* const comm = comms_[NcclComms::Use::kSums];
  const int count = order_.processes();
  for (int have = 1; have < count; have *= 2) {
    const size_t bytes = static_cast<size_t>(std::min(have, count - have)) * n * sizeof(double);
    comms_.Group([&] {
      comms_.nccl().Send(comm, values, bytes, (process_ + count - have) % count, stream);
      comms_.nccl().Recv(comm, values + static_cast<size_t>(have) * n, bytes,
                         (process_ + have) % count, stream);
    });
  }
}

void NcclSum::Round(const Parts& parts, std::span<float> values, gpu::Stream stream) {
  const size_t count = parts.processes.size();
  const std::span<float> own = Slice(values, count, parts.place);
  const size_t stride = (own.size() + kWidth - 1) / kWidth * kWidth;
  Nccl& nccl = comms_.nccl();
  NcclComm* const comm = comms_[NcclComms::Use::kSums];
  // Empty slices are not sent: both ends know.
  comms_.ExchangeInGroups(count, parts.place, 1, [&](size_t to, size_t from) {
    const std::span<float> theirs = Slice(values, count, to);
    if (!theirs.empty()) {
      nccl.Send(comm, theirs.data(), theirs.size_bytes(), parts.processes[to], stream);
    }
    if (!own.empty()) {
      const size_t other = from < parts.place ? from : from - 1;
      nccl.Recv(comm, work_ + other * stride, own.size_bytes(), parts.processes[from], stream);
    }
  });
  gpu::AddSlices(
      stream, {own.data(), work_, stride, static_cast<int>(count), static_cast<int>(parts.place)},
      own.size(), comms_.CtasOf(NcclComms::Use::kSums));
  comms_.ExchangeInGroups(count, parts.place, 1, [&](size_t to, size_t from) {
    const std::span<float> theirs = Slice(values, count, from);
    if (!own.empty()) {
      nccl.Send(comm, own.data(), own.size_bytes(), parts.processes[to], stream);
    }
    if (!theirs.empty()) {
      nccl.Recv(comm, theirs.data(), theirs.size_bytes(), parts.processes[from], stream);
    }
  });
}

namespace {

using Use = NcclComms::Use;
using Over = Transport::Over;

/// Bytes of one message of the connecting, and the distance of two.
constexpr size_t kProbe = 16;

/// The participant of a call.
const Participant& Self(std::span<const Participant> participants, Device device) {
  CF_ASSERT(participants.size() == 1 && participants[0].device == device);
  return participants[0];
}

}  // namespace

NcclLinks::NcclLinks(const Plan& plan, const NcclExchange& exchange, const RankOrder& order,
                     int process, const SmBudget& budget, Nccl& nccl, Gpu& gpu,
                     NcclComms::Options options)
    : plan_(plan),
      exchange_(exchange),
      order_(order),
      process_(process),
      device_(order.DeviceOf(process)),
      edges_(EdgesOf(plan)),
      nccl_(nccl),
      gpu_(gpu),
      comms_(plan, order, process, budget, nccl, std::move(options)),
      sum_(plan, order, process, comms_) {}

void NcclLinks::Connect(const std::string& id, GpuBackend& backend) {
  comms_.Join(id);
  const gpu::Stream stream = gpu_.NewStream(0, Priority::kNormal, "connect");
  std::vector<std::pair<int, Over>> sums;
  size_t elements = 1;
  for (const int stage : StagesOf(plan_, device_.rank)) {
    for (const auto& [over, size] :
         {std::pair(Over::kAllMembers, backend.Gradients(stage).size()),
          std::pair(Over::kSameMember, backend.ExpertGradients(stage).size())}) {
      if (size == 0 || !sum_.Needed(stage, over)) continue;
      sums.emplace_back(stage, over);
      elements = std::max(elements, size);
    }
  }
  if (!sums.empty()) sum_.Reserve(gpu_, elements);
  AllocateParcels();

  // Everybody goes through the same list of edges, then groups, then sums by stage: whoever waits
  // waits for one that is earlier in the list, so the first of them always goes on.
  const size_t bytes = kProbe * (1 + static_cast<size_t>(plan_.expert_parallel));
  std::byte* const memory = gpu_.Allocate(bytes);
  gpu_.Zero(stream, memory, bytes);
  ConnectEdges(memory, stream);
  ConnectExperts(memory, stream);
  for (const auto& [stage, over] : sums) sum_.Connect(stage, over, stream);
  if (backend.GuardOfUpdates().numbers > 0) {
    auto* const all = reinterpret_cast<double*>(gpu_.Allocate(DeviceCount(plan_) * sizeof(double)));
    sum_.Gather(all, 1, stream);
  }
  GpuEvent* const connected = gpu_.NewEvent();
  gpu_.Record(connected, stream);
  comms_.Await(
      [&] {
        comms_.Poll();
        return gpu_.Done(connected);
      },
      "the other processes to connect");
  if (puts_) puts_->Connect(backend, share_);
  RegisterMemory(backend);
}

void NcclLinks::PutMessages(ShareBytes share) {
  nccl_.RequirePuts();
  puts_.emplace(plan_, order_, process_, comms_);
  share_ = std::move(share);
}

void NcclLinks::ConnectEdges(std::byte* memory, gpu::Stream stream) {
  for (const auto& [from, to] : edges_) {
    if (device_.rank != from && device_.rank != to) continue;
    NcclComm* const comm = comms_[Edge(from, to)];
    comms_.Group([&, from = from] {
      if (device_.rank == from) return nccl_.Send(comm, memory, kProbe, 1, stream);
      nccl_.Recv(comm, memory + kProbe, kProbe, 0, stream);
    });
  }
}

void NcclLinks::ConnectExperts(std::byte* memory, gpu::Stream stream) {
  if (plan_.expert_parallel == 1) return;
  NcclComm* const comm = comms_[Use::kExperts];
  comms_.ExchangeInGroups(static_cast<size_t>(plan_.expert_parallel),
                          static_cast<size_t>(device_.member), 1, [&](size_t to, size_t from) {
                            nccl_.Send(comm, memory, kProbe, static_cast<int>(to), stream);
                            nccl_.Recv(comm, memory + kProbe * (1 + from), kProbe,
                                       static_cast<int>(from), stream);
                          });
}

void NcclLinks::Transfer(std::span<const Participant> ends) {
  const Participant& self = Self(ends, device_);
  if (puts_) return puts_->Transfer(self);
  const Instruction& message = *self.instruction;
  const std::span<std::byte> bytes = self.backend->Message(message);
  const bool sends = WorkOf(message.op) == Work::kSend;
  NcclComm* const comm =
      comms_[sends ? Edge(device_.rank, message.peer) : Edge(message.peer, device_.rank)];
  comms_.Group([&] {
    sends ? nccl_.Send(comm, bytes.data(), bytes.size(), 1, self.stream)
          : nccl_.Recv(comm, bytes.data(), bytes.size(), 0, self.stream);
  });
}

/// All experts are here; how many rows each has may be known to the device alone.
void NcclLinks::ExchangeAlone(const Participant& self, const ExchangePart& part) {
  gpu::ExchangePeers peers = {};
  peers.peer[0] = part.peer;
  peers.members = 1;
  peers.local_experts = part.local_experts;
  Pull(self.stream, part, peers, 0, self.stream.sms);
}

void NcclLinks::Exchange(std::span<const Participant> group) {
  const Participant& self = Self(group, device_);
  const ExchangePart part = self.backend->Exchange(*self.instruction);
  if (plan_.expert_parallel == 1) return ExchangeAlone(self, part);
  CF_ASSERT(part.capacity == exchange_.capacity && part.most_rows == exchange_.expert_rows &&
            part.local_experts == exchange_.local_experts && part.width == exchange_.width);
  exchange_.capacity > 0 ? ExchangeFixed(self, part) : ExchangeParcels(self, part);
}

/// The rows of one member's tokens for one expert are one part: at the tokens by expert, at the
/// experts by expert, then member.
void NcclLinks::ExchangeFixed(const Participant& self, const ExchangePart& part) {
  const int members = plan_.expert_parallel, local = part.local_experts, me = device_.member;
  CF_ASSERT(part.sent_rows == part.capacity * local * members && part.sent_rows <= part.most_rows);
  const size_t bytes =
      static_cast<size_t>(part.capacity) * static_cast<size_t>(part.width) * sizeof(gpu::Bf16);
  auto* const tokens = reinterpret_cast<std::byte*>(part.peer.tokens);
  auto* const experts = reinterpret_cast<std::byte*>(part.peer.experts);
  const auto of_tokens = [&](int member, int expert) {
    return tokens + bytes * static_cast<size_t>(member * local + expert);
  };
  const auto of_experts = [&](int member, int expert) {
    return experts + bytes * static_cast<size_t>(expert * members + member);
  };

  const int ctas = comms_.CtasOf(Use::kExperts);
  if (part.first != nullptr) {
    gpu::SetCounts(self.stream, part.first, part.received, members, local, part.capacity);
  }
  const size_t stride = bytes * static_cast<size_t>(members);
  part.to_experts ? gpu::CopyParts(self.stream, of_tokens(me, 0), bytes, of_experts(me, 0), stride,
                                   bytes, local, ctas)
                  : gpu::CopyParts(self.stream, of_experts(me, 0), stride, of_tokens(me, 0), bytes,
                                   bytes, local, ctas);
  NcclComm* const comm = comms_[Use::kExperts];
  // A member sends its tokens' rows to each of my experts, and I mine to each of its.
  const auto mine = [&](int member, int expert) {
    return part.to_experts ? of_tokens(member, expert) : of_experts(member, expert);
  };
  const auto theirs = [&](int member, int expert) {
    return part.to_experts ? of_experts(member, expert) : of_tokens(member, expert);
  };
  // Experts at a time: as many as there is room for with all members.
  const int step = std::max(1, static_cast<int>(NcclComms::kMostMessages) / (2 * (members - 1)));
  for (int begin = 0; begin < local; begin += step) {
    const int end = std::min(begin + step, local);
    comms_.ExchangeInGroups(static_cast<size_t>(members), static_cast<size_t>(me),
                            static_cast<size_t>(end - begin), [&](size_t there, size_t here) {
                              const auto to = static_cast<int>(there),
                                         from = static_cast<int>(here);
                              for (int expert = begin; expert < end; ++expert) {
                                nccl_.Send(comm, mine(to, expert), bytes, to, self.stream);
                                nccl_.Recv(comm, theirs(from, expert), bytes, from, self.stream);
                              }
                            });
  }
}

void NcclLinks::AllocateParcels() {
  if (plan_.expert_parallel == 1 || plan_.layers == 0 || exchange_.capacity > 0) return;
  const int members = plan_.expert_parallel;
  CF_ASSERT(exchange_.expert_rows > 0 && exchange_.expert_rows % members == 0);
  const size_t numbers =
      static_cast<size_t>(exchange_.expert_rows) * static_cast<size_t>(exchange_.width);
  const size_t counts =
      static_cast<size_t>(members) * static_cast<size_t>(exchange_.local_experts + 1);
  const size_t bytes = 2 * numbers * sizeof(gpu::Bf16) + counts * sizeof(int32_t);
  parcel_memory_ = nccl_.NewMemory(bytes);
  auto* const out = reinterpret_cast<gpu::Bf16*>(parcel_memory_.data());
  parcels_ = {.out = out,
              .in = out + numbers,
              .rows = exchange_.expert_rows / members,
              .width = exchange_.width,
              .members = members,
              .self = device_.member,
              .local_experts = exchange_.local_experts};
  begins_ = reinterpret_cast<int32_t*>(out + 2 * numbers);
}

/// All that messages of the pipeline and of experts use. The messages connected without are done.
void NcclLinks::RegisterMemory(const GpuBackend& backend) {
  const std::span<std::byte> memory = backend.LinkMemory();
  std::vector<NcclComm*> comms;
  for (const Edge& edge : edges_) {
    const bool here = edge.first == device_.rank || edge.second == device_.rank;
    if (here && !puts_) comms.push_back(comms_[edge]);
  }
  if (plan_.expert_parallel > 1) comms.push_back(comms_[Use::kExperts]);
  for (NcclComm* comm : comms) {
    if (!memory.empty()) comms_.Register(comm, memory);
  }
  if (!parcel_memory_.empty()) comms_.Register(comms_[Use::kExperts], parcel_memory_);
}

void NcclLinks::ExchangeParcels(const Participant& self, const ExchangePart& part) {
  const gpu::Stream stream = self.stream;
  const gpu::ExchangePeer& here = part.peer;
  const int ctas = comms_.CtasOf(Use::kExperts);
  part.to_experts ? gpu::PackTokens(stream, parcels_, here.sent, here.tokens, part.sent_rows, ctas)
                  : gpu::PackExperts(stream, parcels_, here.first, here.received, here.experts,
                                     part.most_rows, ctas);
  NcclComm* const comm = comms_[Use::kExperts];
  const auto local = static_cast<size_t>(part.local_experts);
  const size_t numbers = static_cast<size_t>(parcels_.rows) * static_cast<size_t>(parcels_.width);
  const bool counts = part.first != nullptr;
  comms_.ExchangeInGroups(
      static_cast<size_t>(parcels_.members), static_cast<size_t>(parcels_.self), counts ? 2 : 1,
      [&](size_t to, size_t from) {
        const auto receiver = static_cast<int>(to), sender = static_cast<int>(from);
        if (counts) {
          const size_t bytes = (local + 1) * sizeof(int32_t);
          nccl_.Send(comm, here.sent + to * local, bytes, receiver, stream);
          nccl_.Recv(comm, begins_ + from * (local + 1), bytes, sender, stream);
        }
        nccl_.Send(comm, parcels_.out + to * numbers, numbers * sizeof(gpu::Bf16), receiver,
                   stream);
        nccl_.Recv(comm, parcels_.in + from * numbers, numbers * sizeof(gpu::Bf16), sender, stream);
      });
  if (counts) {
    gpu::CountParcels(stream, parcels_, here.sent, begins_, part.most_rows, part.first,
                      part.received, part.overflow);
  }
  part.to_experts
      ? gpu::UnpackExperts(stream, parcels_, here.first, here.received, here.experts,
                           part.most_rows, ctas)
      : gpu::UnpackTokens(stream, parcels_, here.sent, here.tokens, part.sent_rows, ctas);
}

void NcclLinks::Sum(std::span<const Participant> holders) {
  const Participant& self = Self(holders, device_);
  const int stage = self.instruction->stage;
  sum_.Run(stage, Over::kAllMembers, self.backend->Gradients(stage), self.stream);
  sum_.Run(stage, Over::kSameMember, self.backend->ExpertGradients(stage), self.stream);
}

}  // namespace contraflow
