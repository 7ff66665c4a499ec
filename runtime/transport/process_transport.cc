#include "runtime/transport/process_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/transport.h"
#include "runtime/transport/process_peers.h"

namespace contraflow {
namespace {

using Channel = Wire::Channel;

}  // namespace

ProcessTransport::ProcessTransport(const Plan& plan, const RankOrder& order, Wire& wire,
                                   Progress* progress, Options options)
    : options_(options),
      wire_(wire),
      peers_(plan, order, wire, progress),
      sum_(peers_, options.strict) {
  const Program& program = plan.program(peers_.device().rank);
  for (size_t i = 0; i < program.size(); ++i) {
    if (!IsMessage(program[i].op)) continue;
    index_of_[{IsSend(program[i].op), TagOf(program[i])}] = static_cast<int64_t>(i);
  }
  pending_.reserve(index_of_.size());
}

ProcessTransport::~ProcessTransport() {
  // Whoever gives up with something under way may free its bytes next.
  if (!pending_.empty()) wire_.Abort();
}

void ProcessTransport::Start(Transfer* transfer) {
  const Instruction& i = transfer->instruction;
  const int process = peers_.ProcessOf(RankAt(i.peer));
  const Label label = {i, 0, transfer->data.size()};
  const int ticket =
      IsSend(i.op) ? wire_.Send(Channel::kMessages, process, label, transfer->data, options_.strict)
                   : wire_.Receive(Channel::kMessages, process, transfer->data);
  pending_.push_back({transfer, ticket});
}

/// Looks whether a transfer is done; if so it is no longer pending.
bool ProcessTransport::Test(size_t place) {
  const auto [transfer, ticket] = pending_[place];
  const Wire::Status status = wire_.Test(ticket);
  if (!status.done) return false;
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(place));
  if (!IsSend(transfer->instruction.op)) {
    Check(*transfer, status.label);
    // Before its label came there was nothing to transfer.
    transfer->start = std::max(transfer->start, status.begun);
  }
  transfer->end = Clock::now();
  transfer->done = true;
  peers_.Move();
  return true;
}

/// The place of a transfer among those that are pending.
size_t ProcessTransport::PlaceOf(const Transfer& transfer) const {
  const auto at = std::find_if(pending_.begin(), pending_.end(),
                               [&](const Pending& p) { return p.transfer == &transfer; });
  CF_ASSERT(at != pending_.end());
  return static_cast<size_t>(at - pending_.begin());
}

void ProcessTransport::Wait(Transfer& transfer) {
  if (transfer.done) return;
  const Instruction& i = transfer.instruction;
  const auto index = index_of_.find({IsSend(i.op), TagOf(i)});
  const size_t place = PlaceOf(transfer);
  peers_.WaitFor(peers_.ProcessOf(RankAt(i.peer)), index == index_of_.end() ? -1 : index->second,
                 [&] { return Test(place); });
}

void ProcessTransport::Check(const Transfer& receive, const Label& label) const {
  const auto sender = [&] { return peers_.NameOf(RankAt(receive.instruction.peer)); };
  Instruction sent = label.instruction;
  sent.peer = peers_.device().rank;
  if (!IsSend(sent.op) || TagOf(sent) != TagOf(receive.instruction)) {
    throw WrongMessage(receive.instruction, sender(), sent);
  }
  if (label.bytes != receive.data.size()) {
    throw WrongSize(receive.instruction, receive.data.size(), sender(), label.bytes);
  }
}

/// `work` begins messages of memory that may be freed once it has failed.
template <typename WorkOnMemory>
auto ProcessTransport::AbortIfFails(const WorkOnMemory& work) {
  wire_.Poll();
  try {
    return work();
  } catch (...) {
    wire_.Abort();
    throw;
  }
}

void ProcessTransport::Exchange(const Instruction& instruction,
                                std::span<const std::span<const std::byte>> send,
                                std::span<const std::span<std::byte>> receive) {
  const size_t members = send.size();
  const auto self = static_cast<size_t>(peers_.device().member);
  sends_.assign(members, -1);
  receives_.assign(members, -1);
  for (size_t e = 0; e < members; ++e) {
    if (e == self) continue;
    receives_[e] = wire_.Receive(Channel::kExperts, peers_.ProcessOf(MemberAt(e)), receive[e]);
  }
  for (size_t e = 0; e < members; ++e) {
    if (e == self) continue;
    const Label label = {instruction, 0, send[e].size()};
    sends_[e] = wire_.Send(Channel::kExperts, peers_.ProcessOf(MemberAt(e)), label, send[e],
                           options_.strict);
  }
  size_t wrong = members;  // who sends another size than is expected
  uint64_t wrong_size = 0;
  for (size_t e = members; e-- > 0;) {
    uint64_t size = send[self].size();
    if (e != self) {
      const Label label = peers_.Await(peers_.ProcessOf(MemberAt(e)), receives_[e]).label;
      if (!SameExchange(label.instruction, instruction)) {
        throw OtherExchange(peers_.NameOf(peers_.device()), instruction, peers_.NameOf(MemberAt(e)),
                            label.instruction);
      }
      size = label.bytes;
    } else if (size == receive[self].size()) {
      std::copy(send[self].begin(), send[self].end(), receive[self].begin());
    }
    if (size == receive[e].size()) continue;
    wrong = e;
    wrong_size = size;
  }
  for (size_t e = 0; e < members; ++e) {
    if (e != self) peers_.Await(peers_.ProcessOf(MemberAt(e)), sends_[e]);
  }
  if (wrong < members) {
    throw WrongPart(instruction, receive[wrong].size(), peers_.NameOf(MemberAt(wrong)), wrong_size);
  }
}

void ProcessTransport::Post(std::span<Transfer* const> group) {
  BeginPost(group, peers_.device().rank, peers_.ranks());
  wire_.Poll();
  for (Transfer* transfer : group) Start(transfer);
  if (!options_.strict) return;
  for (Transfer* transfer : group) Wait(*transfer);
}

bool ProcessTransport::Done(Transfer& transfer) { return transfer.done || Test(PlaceOf(transfer)); }

void ProcessTransport::Poll() {
  wire_.Poll();
  for (size_t place = 0; place < pending_.size();) {
    if (!Test(place)) ++place;
  }
}

Clock::time_point ProcessTransport::Sum(const Instruction& reduce, Over over,
                                        std::span<const int> holders, std::span<float> values) {
  RequireHolder(holders, peers_.device().rank);
  return AbortIfFails([&] { return sum_.Run(reduce, over, holders, values); });
}

void ProcessTransport::AllToAll(const Instruction& instruction,
                                std::span<const std::span<const std::byte>> send,
                                std::span<const std::span<std::byte>> receive) {
  RequireParts(instruction, static_cast<size_t>(peers_.members()), send.size(), receive.size());
  AbortIfFails([&] { Exchange(instruction, send, receive); });
}

void ProcessTransport::Abort() { wire_.Abort(); }

}  // namespace contraflow
