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

struct ProcessTransport::State {
  State(const Plan& plan, const RankOrder& order, Wire& the_wire, Progress* progress,
        Options the_options)
      : options(the_options),
        wire(the_wire),
        peers(plan, order, the_wire, progress),
        sum(peers, the_options.strict) {
    const Program& program = plan.programs[static_cast<size_t>(peers.device().rank)];
    for (size_t i = 0; i < program.size(); ++i) {
      if (!IsMessage(program[i].op)) continue;
      index_of[{IsSend(program[i].op), TagOf(program[i])}] = static_cast<int64_t>(i);
    }
    pending.reserve(index_of.size());
  }

  /// A transfer that is not done.
  struct Pending {
    Transfer* transfer;
    int ticket;
  };

  Device RankAt(int rank) const { return {peers.device().replica, peers.device().member, rank}; }
  Device MemberAt(size_t member) const {
    return {peers.device().replica, static_cast<int>(member), peers.device().rank};
  }

  void Start(Transfer* transfer) {
    const Instruction& i = transfer->instruction;
    const int process = peers.ProcessOf(RankAt(i.peer));
    const Label label = {i, 0, transfer->data.size()};
    const int ticket =
        IsSend(i.op) ? wire.Send(Channel::kMessages, process, label, transfer->data, options.strict)
                     : wire.Receive(Channel::kMessages, process, transfer->data);
    pending.push_back({transfer, ticket});
  }

  /// Looks whether a transfer is done; if so it is no longer pending.
  bool Test(size_t place) {
    const auto [transfer, ticket] = pending[place];
    const Wire::Status status = wire.Test(ticket);
    if (!status.done) return false;
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(place));
    if (!IsSend(transfer->instruction.op)) {
      Check(*transfer, status.label);
      // Before its label came there was nothing to transfer.
      transfer->start = std::max(transfer->start, status.begun);
    }
    transfer->end = Clock::now();
    transfer->done = true;
    peers.Move();
    return true;
  }

  /// The place of a transfer among those that are pending.
  size_t PlaceOf(const Transfer& transfer) const {
    const auto at = std::find_if(pending.begin(), pending.end(),
                                 [&](const Pending& p) { return p.transfer == &transfer; });
    CF_ASSERT(at != pending.end());
    return static_cast<size_t>(at - pending.begin());
  }

  void Await(Transfer& transfer) {
    if (transfer.done) return;
    const Instruction& i = transfer.instruction;
    const auto index = index_of.find({IsSend(i.op), TagOf(i)});
    const size_t place = PlaceOf(transfer);
    peers.WaitFor(peers.ProcessOf(RankAt(i.peer)), index == index_of.end() ? -1 : index->second,
                  [&] { return Test(place); });
  }

  void Check(const Transfer& receive, const Label& label) const {
    const auto sender = [&] { return peers.NameOf(RankAt(receive.instruction.peer)); };
    Instruction sent = label.instruction;
    sent.peer = peers.device().rank;
    if (!IsSend(sent.op) || TagOf(sent) != TagOf(receive.instruction)) {
      throw WrongMessage(receive.instruction, sender(), sent);
    }
    if (label.bytes != receive.data.size()) {
      throw WrongSize(receive.instruction, receive.data.size(), sender(), label.bytes);
    }
  }

  /// `work` begins messages of memory that may be freed once it has failed.
  template <typename WorkOnMemory>
  auto AbortIfFails(const WorkOnMemory& work) {
    wire.Poll();
    try {
      return work();
    } catch (...) {
      wire.Abort();
      throw;
    }
  }

  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

  const Options options;
  Wire& wire;
  const ProcessPeers peers;
  OrderedSum sum;
  std::map<std::pair<bool, Tag>, int64_t> index_of;  // instructions, by whether they send
  std::vector<Pending> pending;                      // as posted
  std::vector<int> sends, receives;                  // tickets of an exchange, by member
};

void ProcessTransport::State::AllToAll(const Instruction& instruction,
                                       std::span<const std::span<const std::byte>> send,
                                       std::span<const std::span<std::byte>> receive) {
  const size_t members = send.size();
  const auto self = static_cast<size_t>(peers.device().member);
  sends.assign(members, -1);
  receives.assign(members, -1);
  for (size_t e = 0; e < members; ++e) {
    if (e == self) continue;
    receives[e] = wire.Receive(Channel::kExperts, peers.ProcessOf(MemberAt(e)), receive[e]);
  }
  for (size_t e = 0; e < members; ++e) {
    if (e == self) continue;
    const Label label = {instruction, 0, send[e].size()};
    sends[e] =
        wire.Send(Channel::kExperts, peers.ProcessOf(MemberAt(e)), label, send[e], options.strict);
  }
  size_t wrong = members;  // who sends another size than is expected
  uint64_t wrong_size = 0;
  for (size_t e = members; e-- > 0;) {
    uint64_t size = send[self].size();
    if (e != self) {
      const Label label = peers.Await(peers.ProcessOf(MemberAt(e)), receives[e]).label;
      if (!SameExchange(label.instruction, instruction)) {
        throw OtherExchange(peers.NameOf(peers.device()), instruction, peers.NameOf(MemberAt(e)),
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
    if (e != self) peers.Await(peers.ProcessOf(MemberAt(e)), sends[e]);
  }
  if (wrong < members) {
    throw WrongPart(instruction, receive[wrong].size(), peers.NameOf(MemberAt(wrong)), wrong_size);
  }
}

ProcessTransport::ProcessTransport(const Plan& plan, const RankOrder& order, Wire& wire,
                                   Progress* progress, Options options)
    : state_(std::make_unique<State>(plan, order, wire, progress, options)) {}

ProcessTransport::~ProcessTransport() {
  // Whoever gives up with something under way may free its bytes next.
  if (!state_->pending.empty()) state_->wire.Abort();
}

void ProcessTransport::Post(std::span<Transfer* const> group) {
  const Clock::time_point posted = Clock::now();
  for (Transfer* transfer : group) {
    CF_ASSERT(!transfer->done);
    const int peer = transfer->instruction.peer;
    if (peer < 0 || peer >= state_->peers.ranks() || peer == state_->peers.device().rank) {
      throw NoSuchRank(peer);
    }
    transfer->start = posted;
  }
  state_->wire.Poll();
  for (Transfer* transfer : group) state_->Start(transfer);
  if (!state_->options.strict) return;
  for (Transfer* transfer : group) state_->Await(*transfer);
}

bool ProcessTransport::Done(Transfer& transfer) {
  return transfer.done || state_->Test(state_->PlaceOf(transfer));
}

void ProcessTransport::Wait(Transfer& transfer) { state_->Await(transfer); }

void ProcessTransport::Poll() {
  state_->wire.Poll();
  for (size_t place = 0; place < state_->pending.size();) {
    if (!state_->Test(place)) ++place;
  }
}

Clock::time_point ProcessTransport::Sum(const Instruction& reduce, Over over,
                                        std::span<const int> holders, std::span<float> values) {
  if (std::find(holders.begin(), holders.end(), state_->peers.device().rank) == holders.end()) {
    throw NoHolder();
  }
  return state_->AbortIfFails([&] { return state_->sum.Run(reduce, over, holders, values); });
}

void ProcessTransport::AllToAll(const Instruction& instruction,
                                std::span<const std::span<const std::byte>> send,
                                std::span<const std::span<std::byte>> receive) {
  const auto members = static_cast<size_t>(state_->peers.members());
  if (send.size() != members || receive.size() != members) {
    throw WrongParts(instruction, members, send.size(), receive.size());
  }
  state_->AbortIfFails([&] { state_->AllToAll(instruction, send, receive); });
}

void ProcessTransport::Abort() { state_->wire.Abort(); }

}  // namespace contraflow
