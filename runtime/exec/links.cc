#include "runtime/exec/links.h"

#include <algorithm>
#include <string>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

// In floats: slices begin where a cache line does.
constexpr size_t kSliceGrain = 64;
constexpr int kAllMembers = -1;

void CheckCount(size_t count, const std::string& what) {
  if (count <= gpu::kMaxPeers) return;
  throw Error(what + ": " + std::to_string(count) + " devices of one GPU would meet, of which " +
              std::to_string(gpu::kMaxPeers) +
              " can; compile the plan for fewer devices, or run it on more GPUs");
}

}  // namespace

void Pull(gpu::Stream stream, const ExchangePart& part, const gpu::ExchangePeers& peers, int self,
          int ctas) {
  if (part.peer.tokens == part.peer.experts) {
    CF_ASSERT(peers.members == 1);
    if (part.first == nullptr) return;
    gpu::CountRows(stream, peers, self, part.capacity, part.most_rows, part.first, part.received,
                   part.overflow);
  } else if (part.to_experts) {
    gpu::PullToExperts(stream, peers, self, part.width, part.capacity, part.most_rows, part.first,
                       part.received, part.overflow, ctas);
  } else {
    gpu::PullToTokens(stream, peers, self, part.width, part.sent_rows, ctas);
  }
}

VirtualLinks::VirtualLinks(const Plan& plan, const SmBudget& budget, Gpu& gpu,
                           std::span<const gpu::Stream> streams)
    : budget_(budget), gpu_(gpu) {
  CheckCount(static_cast<size_t>(plan.expert_parallel), "expert group");
  for (const std::vector<int>& holders : HoldersOfStage(plan)) {
    if (!NeedsReduce(plan, holders.size())) continue;
    CheckCount(holders.size() * static_cast<size_t>(plan.data_parallel) *
                   static_cast<size_t>(plan.expert_parallel),
               "REDUCE");
  }
  for (const gpu::Stream& stream : streams) events_.emplace(stream.handle, gpu.NewEvent());
  spans_.reserve(gpu::kMaxPeers);
  parts_.reserve(gpu::kMaxPeers);
}

void VirtualLinks::Transfer(std::span<const Participant> ends) {
  CF_ASSERT(ends.size() == 2);
  const Participant &from = ends[0], &to = ends[1];
  const std::span<const std::byte> source = from.backend->Message(*from.instruction);
  const std::span<std::byte> target = to.backend->Message(*to.instruction);
  CF_ASSERT(source.size() == target.size());
  GpuEvent* const ready = events_.at(to.stream.handle);
  GpuEvent* const there = events_.at(from.stream.handle);
  gpu_.Record(ready, to.stream);
  gpu_.Wait(from.stream, ready);
  gpu::LinkCopy(from.stream, source.data(), target.data(), source.size(), budget_.link_ctas);
  gpu_.Record(there, from.stream);
  gpu_.Wait(to.stream, there);
}

void VirtualLinks::Exchange(std::span<const Participant> members) {
  gpu::ExchangePeers peers = {};
  parts_.clear();
  for (const Participant& member : members) {
    CF_ASSERT(static_cast<size_t>(member.device.member) == parts_.size());
    parts_.push_back(member.backend->Exchange(*member.instruction));
    peers.peer[parts_.size() - 1] = parts_.back().peer;
  }
  peers.members = static_cast<int>(members.size());
  peers.local_experts = parts_[0].local_experts;
  Join(members);
  for (size_t m = 0; m < members.size(); ++m) {
    const gpu::Stream stream = members[m].stream;
    Pull(stream, parts_[m], peers, static_cast<int>(m), ExpertCtas(stream));
  }
  // A member's memory that others read stays as it is until they have.
  Join(members);
}

void VirtualLinks::Sum(std::span<const Participant> holders) {
  Join(holders);
  SumOver(holders, kAllMembers);
  int members = 0;
  for (const Participant& p : holders) members = std::max(members, p.device.member + 1);
  for (int member = 0; member < members; ++member) SumOver(holders, member);
  Join(holders);
}

/// The gradients that all copies have, or those of the experts of one member; every holder adds up
/// its slice of them.
void VirtualLinks::SumOver(std::span<const Participant> holders, int member) {
  const bool all = member == kAllMembers;
  spans_.clear();
  for (const Participant& p : holders) {
    if (!all && p.device.member != member) continue;
    const int stage = p.instruction->stage;
    spans_.push_back(all ? p.backend->Gradients(stage) : p.backend->ExpertGradients(stage));
  }
  const size_t count = spans_.size(), size = spans_[0].size();
  if (count == 1 || size == 0) return;
  const size_t grains = (size + kSliceGrain - 1) / kSliceGrain;
  size_t slice = 0;
  for (const Participant& p : holders) {
    if (!all && p.device.member != member) continue;
    const size_t begin = slice * grains / count * kSliceGrain;
    ++slice;
    const size_t end = std::min(slice * grains / count * kSliceGrain, size);
    if (begin == end) continue;
    gpu::SumParts parts = {};
    for (const std::span<float> span : spans_) {
      CF_ASSERT(span.size() == size);
      parts.part[parts.count++] = span.data() + begin;
    }
    gpu::OrderedSum(p.stream, parts, end - begin, budget_.sum_ctas);
  }
}

/// Work that follows on each of the streams comes after all that they have been given so far.
void VirtualLinks::Join(std::span<const Participant> participants) {
  if (participants.size() == 1) return;
  for (const Participant& p : participants) gpu_.Record(events_.at(p.stream.handle), p.stream);
  for (const Participant& p : participants) {
    for (const Participant& other : participants) {
      if (&p != &other) gpu_.Wait(p.stream, events_.at(other.stream.handle));
    }
  }
}

/// If a device has its experts to itself, nothing computes during its exchanges that they would
/// have to leave room for.
int VirtualLinks::ExpertCtas(gpu::Stream stream) const {
  return budget_.expert_ctas > 0 ? budget_.expert_ctas : stream.sms;
}

}  // namespace contraflow
