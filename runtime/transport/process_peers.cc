#include "runtime/transport/process_peers.h"

#include <algorithm>

#include "compiler/plan/error.h"
#include "runtime/core/transport.h"

namespace contraflow {

ProcessPeers::ProcessPeers(const Plan& plan, const RankOrder& order, Wire& wire, Progress* progress)
    : order_(order), wire_(wire), progress_(progress), device_(order.DeviceOf(wire.self())) {
  CF_ASSERT(order.processes() == wire.processes());
  sizes_.ranks = plan.ranks;
  sizes_.data_parallel = plan.data_parallel;
  sizes_.expert_parallel = plan.expert_parallel;
}

std::string ProcessPeers::NameOf(Device other) const { return contraflow::NameOf(sizes_, other); }

void ProcessPeers::Move() const {
  if (progress_ != nullptr) progress_->Move();
}

Wire::Status ProcessPeers::Await(int process, int ticket) const {
  Wire::Status status;
  WaitFor(process, -1, [&] { return (status = wire_.Test(ticket)).done; });
  return status;
}

namespace {

/// What is sent: how many elements there are; to every part its share of them; the sum of this
/// share, back. Where a reduction has two sums, those over the same member come behind the others.
enum Message : int32_t { kSize, kShare, kSum, kMessages };

}  // namespace

const OrderedSum::Parts& OrderedSum::PartsOf(int stage, Transport::Over over,
                                             std::span<const int> holders) {
  Parts& parts = parts_[{stage, over}];
  if (!parts.processes.empty()) return parts;
  for (int replica = 0; replica < peers_.replicas(); ++replica) {
    for (int member = 0; member < peers_.members(); ++member) {
      if (over == Transport::Over::kSameMember && member != peers_.device().member) continue;
      for (const int rank : holders) {
        const Device device = {replica, member, rank};
        if (device == peers_.device()) parts.place = parts.devices.size();
        parts.devices.push_back(device);
        parts.processes.push_back(peers_.ProcessOf(device));
      }
    }
  }
  return parts;
}

/// Begins to exchange a message with every other part; `send(p)` and `receive(p)` are its bytes.
template <typename Send, typename Receive>
void OrderedSum::Begin(const Parts& parts, const Label& label, const Send& send,
                       const Receive& receive) {
  sends_.assign(parts.processes.size(), -1);
  receives_.assign(parts.processes.size(), -1);
  for (size_t p = 0; p < parts.processes.size(); ++p) {
    if (p == parts.place) continue;
    receives_[p] = peers_.wire().Receive(Wire::Channel::kSums, parts.processes[p], receive(p));
  }
  for (size_t p = 0; p < parts.processes.size(); ++p) {
    if (p == parts.place) continue;
    const std::span<const std::byte> bytes = send(p);
    Label one = label;
    one.bytes = bytes.size();
    sends_[p] =
        peers_.wire().Send(Wire::Channel::kSums, parts.processes[p], one, bytes, rendezvous_);
  }
}

/// Returns, once all have come and left, when the last label came.
Clock::time_point OrderedSum::Finish(const Parts& parts, const Label& label) {
  Clock::time_point last = Clock::time_point::min();
  for (size_t p = 0; p < parts.processes.size(); ++p) {
    if (p == parts.place) continue;
    const Wire::Status status = peers_.Await(parts.processes[p], receives_[p]);
    const Instruction &here = label.instruction, &there = status.label.instruction;
    if (there.op != here.op || there.stage != here.stage || status.label.part != label.part) {
      throw OtherReduction(peers_.NameOf(peers_.device()), here, peers_.NameOf(parts.devices[p]),
                           there);
    }
    last = std::max(last, status.begun);
  }
  for (size_t p = 0; p < parts.processes.size(); ++p) {
    if (p != parts.place) peers_.Await(parts.processes[p], sends_[p]);
  }
  return last;
}

Clock::time_point OrderedSum::Run(const Instruction& reduce, Transport::Over over,
                                  std::span<const int> holders, std::span<float> values) {
  const Clock::time_point came = Clock::now();
  const Parts& parts = PartsOf(reduce.stage, over, holders);
  const size_t count = parts.processes.size();
  if (count == 1) return came;
  const int32_t first = over == Transport::Over::kAllMembers ? 0 : kMessages;

  // Nobody sends elements before all are known to have as many.
  const uint64_t size = values.size();
  sizes_.assign(count, size);
  Label label = {reduce, first + kSize, 0};
  Begin(
      parts, label, [&](size_t) { return std::as_bytes(std::span(&size, 1)); },
      [&](size_t p) { return std::as_writable_bytes(std::span(&sizes_[p], 1)); });
  const Clock::time_point last = std::max(came, Finish(parts, label));
  for (size_t p = count; p-- > 0;) {
    if (sizes_[p] != size) throw OtherCount(values.size(), peers_.NameOf(parts.devices[p]));
  }

  const std::span<float> own = ShareOf(values, parts.place, count);
  if (scratch_.size() < own.size() * (count - 1)) scratch_.resize(own.size() * (count - 1));
  shares_.assign(count, own);
  label.part = first + kShare;
  Begin(
      parts, label, [&](size_t p) { return std::as_bytes(ShareOf(values, p, count)); },
      [&](size_t p) {
        const size_t slot = p < parts.place ? p : p - 1;
        const auto room = std::span(scratch_).subspan(slot * own.size(), own.size());
        shares_[p] = room;
        return std::as_writable_bytes(room);
      });
  Finish(parts, label);
  AddShares(shares_, own);

  label.part = first + kSum;
  Begin(
      parts, label, [&](size_t) { return std::as_bytes(own); },
      [&](size_t p) { return std::as_writable_bytes(ShareOf(values, p, count)); });
  Finish(parts, label);
  return last;
}

}  // namespace contraflow
