#include "runtime/transport/wire_transport.h"

#include <algorithm>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

using Channel = Wire::Channel;

/// The elements that the device `place` of `count` adds up in a Sum.
template <typename T>
std::span<T> ShareOf(std::span<T> values, size_t place, size_t count) {
  const size_t begin = values.size() * place / count;
  return values.subspan(begin, values.size() * (place + 1) / count - begin);
}

/// Adds up the shares of all devices in their order into `sum`, which may be one of them.
void AddShares(std::span<const std::span<const float>> shares, std::span<float> sum) {
  float block[512];
  for (size_t i = 0; i < sum.size(); i += std::size(block)) {
    const size_t count = std::min(std::size(block), sum.size() - i);
    std::copy_n(shares[0].data() + i, count, block);
    for (const std::span<const float> share : shares.subspan(1)) {
      for (size_t k = 0; k < count; ++k) block[k] += share[i + k];
    }
    std::copy_n(block, count, sum.data() + i);
  }
}

}  // namespace

WireTransport::WireTransport(const Plan& plan, const RankOrder& order, Wire& wire,
                             Progress* progress, bool strict)
    : plan_(plan),
      order_(order),
      wire_(wire),
      progress_(progress),
      strict_(strict),
      device_(order.DeviceOf(wire.self())) {
  CF_ASSERT(order.processes() == wire.processes());
  for (int member = 0; member < plan.expert_parallel; ++member) {
    Add(&members_, {device_.replica, member, device_.rank});
  }
  pending_.reserve(256);
  if (plan.programs.empty()) return;
  const Program& program = plan.program(device_.rank);
  for (size_t i = 0; i < program.size(); ++i) {
    if (!IsMessage(program[i].op)) continue;
    index_of_[{IsSend(program[i].op), TagOf(program[i])}] = static_cast<int64_t>(i);
  }
  pending_.reserve(index_of_.size());
}

WireTransport::~WireTransport() {
  // Whoever gives up with something under way may free its bytes next.
  if (!pending_.empty()) wire_.Abort();
}

/// Returns once `done()`; says meanwhile whom this process waits for.
template <typename IsDone>
void WireTransport::WaitFor(int process, int64_t index, const Instruction& at, const IsDone& done) {
  if (done()) return;
  if (progress_ != nullptr) progress_->WaitFor(process, index);
  wire_.Waits(process, at);
  do wire_.Pause();
  while (!done());
  wire_.Waits(-1, at);
  if (progress_ != nullptr) progress_->WaitFor(Progress::kNobody);
}

Wire::Status WireTransport::Await(int process, int ticket, const Instruction& at) {
  Wire::Status status;
  WaitFor(process, -1, at, [&] { return (status = wire_.Test(ticket)).done; });
  return status;
}

/// Looks whether a transfer is done; if so it is no longer pending.
bool WireTransport::Test(size_t place) {
  const auto [transfer, ticket] = pending_[place];
  const Wire::Status status = wire_.Test(ticket);
  if (!status.done) return false;
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(place));
  if (!IsSend(transfer->instruction.op)) {
    Check(*transfer, status.label);
    // The transfer starts with the arrival of its label.
    transfer->start = std::max(transfer->start, status.begun);
  }
  transfer->end = Clock::now();
  transfer->done = true;
  if (progress_ != nullptr) progress_->Move();
  return true;
}

/// The place of a transfer among those that are pending.
size_t WireTransport::PlaceOf(const Transfer& transfer) const {
  const auto at = std::find_if(pending_.begin(), pending_.end(),
                               [&](const Pending& p) { return p.transfer == &transfer; });
  CF_ASSERT(at != pending_.end());
  return static_cast<size_t>(at - pending_.begin());
}

void WireTransport::Wait(Transfer& transfer) {
  if (transfer.done) return;
  const Instruction& i = transfer.instruction;
  const auto index = index_of_.find({IsSend(i.op), TagOf(i)});
  const size_t place = PlaceOf(transfer);
  WaitFor(order_.ProcessOf(RankAt(i.peer)), index == index_of_.end() ? -1 : index->second, i,
          [&] { return Test(place); });
}

void WireTransport::Check(const Transfer& receive, const Label& label) const {
  const Instruction& here = receive.instruction;
  Instruction sent = label.instruction;
  sent.peer = device_.rank;
  if (!IsSend(sent.op) || TagOf(sent) != TagOf(here)) {
    throw Error(ToString(here) + " got the wrong message: " + NameOf(RankAt(here.peer)) + " sent " +
                ToString(sent) + " first; verify the plan");
  }
  if (label.bytes != receive.data.size()) {
    throw Error(ToString(here) + " expects " + std::to_string(receive.data.size()) +
                " bytes, but " + NameOf(RankAt(here.peer)) + " sent " +
                std::to_string(label.bytes));
  }
}

void WireTransport::Post(std::span<Transfer* const> group) {
  const Clock::time_point posted = Clock::now();
  for (Transfer* transfer : group) {
    CF_ASSERT(!transfer->done);
    const int peer = transfer->instruction.peer;
    if (peer < 0 || peer >= plan_.ranks || peer == device_.rank) {
      throw Error("there is no other rank " + std::to_string(peer) + " to exchange messages with");
    }
    transfer->start = posted;
  }
  wire_.Poll();
  for (Transfer* transfer : group) {
    const Instruction& i = transfer->instruction;
    const std::span<std::byte> data = transfer->data;
    const int process = order_.ProcessOf(RankAt(i.peer));
    pending_.push_back(
        {transfer, IsSend(i.op) ? wire_.Send(Channel::kMessages, process, {i, 0, data.size()}, data)
                                : wire_.Receive(Channel::kMessages, process, data)});
  }
  if (!strict_) return;
  for (Transfer* transfer : group) Wait(*transfer);
}

bool WireTransport::Done(Transfer& transfer) { return transfer.done || Test(PlaceOf(transfer)); }

void WireTransport::Poll() {
  wire_.Poll();
  for (size_t place = 0; place < pending_.size();) {
    if (!Test(place)) ++place;
  }
}

void WireTransport::Abort() { wire_.Abort(); }

/// `work` begins messages of memory that may be freed once it has failed.
template <typename WorkOnMemory>
auto WireTransport::AbortIfFails(const WorkOnMemory& work) {
  wire_.Poll();
  try {
    return work();
  } catch (...) {
    wire_.Abort();
    throw;
  }
}

Error WireTransport::OtherOrder(const char* rule, const Instruction& here, Device who,
                                const Instruction& there) const {
  return Error(std::string(rule) + " in one order, but " + NameOf(device_) + " is at " +
               ToString(here) + " and " + NameOf(who) + " at " + ToString(there) +
               "; verify the plan");
}

void WireTransport::Add(Parts* parts, Device device) const {
  if (device == device_) parts->place = parts->devices.size();
  parts->devices.push_back(device);
  parts->processes.push_back(order_.ProcessOf(device));
}

const WireTransport::Parts& WireTransport::SummedBy(int stage, Over over,
                                                    std::span<const int> holders) {
  Parts& parts = parts_[{stage, over}];
  if (!parts.processes.empty()) return parts;
  for (int replica = 0; replica < plan_.data_parallel; ++replica) {
    for (int member = 0; member < plan_.expert_parallel; ++member) {
      if (over == Over::kSameMember && member != device_.member) continue;
      for (const int rank : holders) Add(&parts, {replica, member, rank});
    }
  }
  return parts;
}

/// Exchanges a message with every other part: `send(p)` and `receive(p)` are its bytes, and
/// `look(p, label)` looks at what came, the last part first. Returns once all have come and left:
/// when the last label came.
template <typename Send, typename Receive, typename Look>
Clock::time_point WireTransport::Round(Channel channel, const Parts& parts, Label label,
                                       const Send& send, const Receive& receive, const Look& look) {
  const size_t count = parts.processes.size();
  sends_.assign(count, -1);
  receives_.assign(count, -1);
  for (size_t p = 0; p < count; ++p) {
    if (p != parts.place) receives_[p] = wire_.Receive(channel, parts.processes[p], receive(p));
  }
  for (size_t p = 0; p < count; ++p) {
    if (p == parts.place) continue;
    const std::span<const std::byte> bytes = send(p);
    label.bytes = bytes.size();
    sends_[p] = wire_.Send(channel, parts.processes[p], label, bytes);
  }
  Clock::time_point last = Clock::time_point::min();
  for (size_t p = count; p-- > 0;) {
    if (p == parts.place) continue;
    const Wire::Status status = Await(parts.processes[p], receives_[p], label.instruction);
    look(p, status.label);
    last = std::max(last, status.begun);
  }
  for (size_t p = 0; p < count; ++p) {
    if (p != parts.place) Await(parts.processes[p], sends_[p], label.instruction);
  }
  return last;
}

Clock::time_point WireTransport::Sum(const Instruction& reduce, Over over,
                                     std::span<const int> holders, std::span<float> values) {
  if (std::find(holders.begin(), holders.end(), device_.rank) == holders.end()) {
    throw Error("this rank holds no copy of the stage");
  }
  const Clock::time_point came = Clock::now();
  const Parts& parts = SummedBy(reduce.stage, over, holders);
  const size_t count = parts.processes.size();
  if (count == 1) return came;
  const std::span<float> own = ShareOf(values, parts.place, count);
  // If a reduction has two sums, the messages of the second, over the same member, come after.
  Label label{reduce, over == Over::kAllMembers ? 0 : 2, 0};
  const auto check = [&](size_t p, size_t expected, const Label& there) {
    const bool same = there.instruction.op == reduce.op && there.part == label.part &&
                      there.instruction.stage == reduce.stage;
    if (!same) {
      throw OtherOrder("the holders of a stage must reduce", reduce, parts.devices[p],
                       there.instruction);
    }
    if (there.bytes != expected) {
      throw Error("has " + std::to_string(values.size()) + " gradients to sum, but " +
                  NameOf(parts.devices[p]) + " another number");
    }
  };
  return AbortIfFails([&] {
    // Sends each member its share of the elements, then returns the sum of this member's share.
    if (scratch_.size() < own.size() * (count - 1)) scratch_.resize(own.size() * (count - 1));
    shares_.assign(count, own);
    const Clock::time_point last = Round(
        Channel::kSums, parts, label,
        [&](size_t p) { return std::as_bytes(ShareOf(values, p, count)); },
        [&](size_t p) {
          const size_t slot = p < parts.place ? p : p - 1;
          const auto room = std::span(scratch_).subspan(slot * own.size(), own.size());
          shares_[p] = room;
          return std::as_writable_bytes(room);
        },
        [&](size_t p, const Label& there) { check(p, own.size_bytes(), there); });
    AddShares(shares_, own);
    ++label.part;
    const auto share = [&](size_t p) { return ShareOf(values, p, count); };
    Round(
        Channel::kSums, parts, label, [&](size_t) { return std::as_bytes(own); },
        [&](size_t p) { return std::as_writable_bytes(share(p)); },
        [&](size_t p, const Label& there) { check(p, share(p).size_bytes(), there); });
    return std::max(came, last);
  });
}

void WireTransport::AllToAll(const Instruction& instruction,
                             std::span<const std::span<const std::byte>> send,
                             std::span<const std::span<std::byte>> receive) {
  const size_t members = members_.devices.size(), self = members_.place;
  if (send.size() != members || receive.size() != members) {
    throw Error(ToString(instruction) + ": an expert group of " + std::to_string(members) +
                " cannot exchange " + std::to_string(send.size()) + " and " +
                std::to_string(receive.size()) + " parts");
  }
  AbortIfFails([&] {
    size_t wrong = members;  // the first that sends another size than is expected
    uint64_t wrong_size = 0;
    const auto check = [&](size_t e, uint64_t size) {
      if (size == receive[e].size() || e > wrong) return;
      wrong = e;
      wrong_size = size;
    };
    check(self, send[self].size());
    if (wrong != self) std::copy(send[self].begin(), send[self].end(), receive[self].begin());
    Round(
        Channel::kExperts, members_, {instruction, 0, 0}, [&](size_t e) { return send[e]; },
        [&](size_t e) { return receive[e]; },
        [&](size_t e, const Label& label) {
          const Instruction& there = label.instruction;
          if (there.op != instruction.op || there.stage != instruction.stage ||
              there.layer != instruction.layer || there.microbatch != instruction.microbatch) {
            throw OtherOrder("an expert group must exchange", instruction, members_.devices[e],
                             there);
          }
          check(e, label.bytes);
        });
    if (wrong == members) return;
    throw Error(ToString(instruction) + " expects " + std::to_string(receive[wrong].size()) +
                " bytes from " + NameOf(members_.devices[wrong]) + ", which sends " +
                std::to_string(wrong_size));
  });
}

}  // namespace contraflow
