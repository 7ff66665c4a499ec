#include "runtime/process_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/error.h"
#include "runtime/message_errors.h"

namespace contraflow {
namespace {

using Channel = Wire::Channel;

bool IsSend(const Instruction& i) { return WorkOf(i.op) == Work::kSend; }
bool IsMessage(const Instruction& i) { return IsSend(i) || WorkOf(i.op) == Work::kRecv; }

/// The messages of a sum: how many elements each has; then to every part its share of the elements;
/// then the sum of this share back. Those over the same member come behind those over all.
enum SumPart : int32_t { kSize, kShare, kSum, kParts };

/// The parts of a sum: processes in the order in which they are added.
struct Reduction {
  std::vector<Device> devices;
  std::vector<int> processes;
  size_t place = 0;  // of this one
};

/// Where the share of the elements begins that one of `parts` adds up.
size_t ShareBegin(size_t size, size_t place, size_t parts) { return size * place / parts; }

template <typename T>
std::span<T> ShareOf(std::span<T> values, size_t place, size_t parts) {
  const size_t begin = ShareBegin(values.size(), place, parts);
  return values.subspan(begin, ShareBegin(values.size(), place + 1, parts) - begin);
}

/// Adds up the parts, in their order; `own` is the one at `place`, and gets the sum.
void AddParts(const std::vector<std::span<const float>>& others, size_t place,
              std::span<float> own) {
  float sum[512];
  for (size_t i = 0; i < own.size();) {
    const size_t count = std::min(std::size(sum), own.size() - i);
    for (size_t p = 0; p < others.size(); ++p) {
      const float* part = (p == place ? own.data() : others[p].data()) + i;
      if (p == 0) {
        std::copy_n(part, count, sum);
      } else {
        for (size_t k = 0; k < count; ++k) sum[k] += part[k];
      }
    }
    std::copy_n(sum, count, own.data() + i);
    i += count;
  }
}

}  // namespace

struct ProcessTransport::State {
  State(const Plan& plan, const RankOrder& the_order, Wire& the_wire, Progress* the_progress,
        Options the_options)
      : order(the_order),
        wire(the_wire),
        progress(the_progress),
        options(the_options),
        device(order.DeviceOf(wire.self())) {
    CF_ASSERT(order.processes() == wire.processes());
    shape.ranks = plan.ranks;
    shape.data_parallel = plan.data_parallel;
    shape.expert_parallel = plan.expert_parallel;
    const Program& program = plan.programs[static_cast<size_t>(device.rank)];
    for (size_t i = 0; i < program.size(); ++i) {
      if (IsMessage(program[i])) index_of[{IsSend(program[i]), TagOf(program[i])}] = i;
    }
    pending.reserve(index_of.size());
  }

  /// A transfer that is not done.
  struct Pending {
    Transfer* transfer;
    int ticket;
  };

  int ProcessAt(int rank) const { return order.ProcessOf({device.replica, device.member, rank}); }
  std::string NameAt(Device other) const { return NameOf(shape, other); }

  Label LabelOf(const Instruction& instruction, int32_t part, size_t bytes) const {
    return {instruction, part, bytes};
  }

  /// Returns when `done()`; says meanwhile whom this process waits for.
  template <typename Done>
  void WaitFor(int process, int64_t instruction, const Done& done) {
    if (done()) return;
    if (progress != nullptr) progress->WaitFor(process, instruction);
    do wire.Pause();
    while (!done());
    if (progress != nullptr) progress->WaitFor(Progress::kNobody);
  }

  /// Returns when what is under way with a process is done.
  Wire::Status Await(int process, int ticket) {
    Wire::Status status;
    WaitFor(process, -1, [&] { return (status = wire.Test(ticket)).done; });
    return status;
  }

  void Start(Transfer* transfer) {
    const Instruction& i = transfer->instruction;
    const int peer = ProcessAt(i.peer);
    const int ticket =
        IsSend(i) ? wire.Send(Channel::kMessages, peer, LabelOf(i, 0, transfer->data.size()),
                              transfer->data, options.strict)
                  : wire.Receive(Channel::kMessages, peer, transfer->data);
    pending.push_back({transfer, ticket});
  }

  /// Looks whether it is done now; if so it is no longer pending.
  bool Test(size_t place) {
    const Pending at = pending[place];
    const Wire::Status status = wire.Test(at.ticket);
    if (!status.done) return false;
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(place));
    Transfer* transfer = at.transfer;
    if (!IsSend(transfer->instruction)) {
      Check(*transfer, status.label);
      // Before its label came there was nothing to transfer.
      transfer->start = std::max(transfer->start, status.begun);
    }
    transfer->end = Clock::now();
    transfer->done = true;
    if (progress != nullptr) progress->Move();
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
    const auto index = index_of.find({IsSend(i), TagOf(i)});
    WaitFor(ProcessAt(i.peer), index == index_of.end() ? -1 : static_cast<int64_t>(index->second),
            [&] {
              // Others may have been done meanwhile.
              return Test(PlaceOf(transfer));
            });
  }

  void Check(const Transfer& receive, const Label& label) const {
    const std::string sender = NameAt({device.replica, device.member, receive.instruction.peer});
    Instruction sent = label.instruction;
    sent.peer = device.rank;
    if (!IsSend(sent) || TagOf(sent) != TagOf(receive.instruction)) {
      throw WrongMessage(receive.instruction, sender, sent);
    }
    if (label.bytes != receive.data.size()) {
      throw WrongSize(receive.instruction, receive.data.size(), sender, label.bytes);
    }
  }

  const Reduction& ReductionOf(int stage, Over over, std::span<const int> holders) {
    Reduction& reduction = reductions[{stage, over}];
    if (!reduction.processes.empty()) return reduction;
    for (int replica = 0; replica < shape.data_parallel; ++replica) {
      for (int member = 0; member < shape.expert_parallel; ++member) {
        if (over == Over::kSameMember && member != device.member) continue;
        for (const int rank : holders) {
          const Device part = {replica, member, rank};
          if (part == device) reduction.place = reduction.devices.size();
          reduction.devices.push_back(part);
          reduction.processes.push_back(order.ProcessOf(part));
        }
      }
    }
    return reduction;
  }

  /// Begins to exchange a message with every other part; `send(p)` and `receive(p)` are its bytes.
  template <typename Send, typename Receive>
  void Exchange(const Reduction& reduction, const Label& label, const Send& send,
                const Receive& receive) {
    sends.assign(reduction.processes.size(), -1);
    receives.assign(reduction.processes.size(), -1);
    for (size_t p = 0; p < reduction.processes.size(); ++p) {
      if (p == reduction.place) continue;
      const std::span<std::byte> in = receive(p);
      receives[p] = wire.Receive(Channel::kSums, reduction.processes[p], in);
    }
    for (size_t p = 0; p < reduction.processes.size(); ++p) {
      if (p == reduction.place) continue;
      const std::span<const std::byte> out = send(p);
      Label one = label;
      one.bytes = out.size();
      sends[p] = wire.Send(Channel::kSums, reduction.processes[p], one, out, options.strict);
    }
  }

  /// Returns when the messages of an exchange have come and left, with the last label's arrival.
  Clock::time_point Finish(const Reduction& reduction, const Label& label) {
    Clock::time_point last = Clock::time_point::min();
    for (size_t p = 0; p < reduction.processes.size(); ++p) {
      if (p == reduction.place) continue;
      const Wire::Status status = Await(reduction.processes[p], receives[p]);
      const Instruction& other = status.label.instruction;
      if (other.op != label.instruction.op || other.stage != label.instruction.stage ||
          status.label.part != label.part) {
        throw OtherReduction(NameAt(device), label.instruction, NameAt(reduction.devices[p]),
                             other);
      }
      last = std::max(last, status.begun);
    }
    for (size_t p = 0; p < reduction.processes.size(); ++p) {
      if (p != reduction.place) Await(reduction.processes[p], sends[p]);
    }
    return last;
  }

  /// `work` begins messages of memory that the caller, or this, may free once it has failed.
  template <typename Work>
  auto AbortIfFails(const Work& work) {
    wire.Poll();
    try {
      return work();
    } catch (...) {
      wire.Abort();
      throw;
    }
  }

  Clock::time_point Sum(const Instruction& reduce, const Reduction& reduction, int32_t first_part,
                        std::span<float> values);
  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

  const RankOrder order;
  Wire& wire;
  Progress* const progress;
  const Options options;
  const Device device;
  Plan shape;                                            // of the plan: for names
  std::map<std::pair<bool, Tag>, size_t> index_of;       // instructions, by whether they send
  std::vector<Pending> pending;                          // as posted
  std::map<std::pair<int, Over>, Reduction> reductions;  // by stage
  // Of the reduction or exchange under way, by part:
  std::vector<int> sends, receives;
  std::vector<uint64_t> sizes;
  std::vector<std::span<const float>> parts;
  std::vector<float> scratch;  // the other parts' elements
};

Clock::time_point ProcessTransport::State::Sum(const Instruction& reduce,
                                               const Reduction& reduction, int32_t first_part,
                                               std::span<float> values) {
  const size_t count = reduction.processes.size(), place = reduction.place;
  const Clock::time_point came = Clock::now();
  // Nobody sends elements before all are known to have the same number of them.
  Label label = LabelOf(reduce, first_part + kSize, 0);
  sizes.assign(count, values.size());
  const uint64_t own_size = values.size();
  Exchange(
      reduction, label, [&](size_t) { return std::as_bytes(std::span(&own_size, 1)); },
      [&](size_t p) { return std::as_writable_bytes(std::span(&sizes[p], 1)); });
  const Clock::time_point last = std::max(came, Finish(reduction, label));
  for (size_t p = count; p-- > 0;) {
    if (sizes[p] == own_size) continue;
    throw OtherCount(values.size(), NameAt(reduction.devices[p]));
  }

  const std::span<float> own = ShareOf(values, place, count);
  scratch.resize(std::max(scratch.size(), own.size() * (count - 1)));
  parts.assign(count, {});
  label.part = first_part + kShare;
  Exchange(
      reduction, label, [&](size_t p) { return std::as_bytes(ShareOf(values, p, count)); },
      [&](size_t p) {
        const size_t slot = p < place ? p : p - 1;
        const auto room = std::span(scratch).subspan(slot * own.size(), own.size());
        parts[p] = room;
        return std::as_writable_bytes(room);
      });
  Finish(reduction, label);
  AddParts(parts, place, own);

  label.part = first_part + kSum;
  Exchange(
      reduction, label, [&](size_t) { return std::as_bytes(own); },
      [&](size_t p) { return std::as_writable_bytes(ShareOf(values, p, count)); });
  Finish(reduction, label);
  return last;
}

void ProcessTransport::State::AllToAll(const Instruction& instruction,
                                       std::span<const std::span<const std::byte>> send,
                                       std::span<const std::span<std::byte>> receive) {
  const auto self = static_cast<size_t>(device.member);
  const auto member = [&](size_t e) {
    return Device{device.replica, static_cast<int>(e), device.rank};
  };
  sends.assign(send.size(), -1);
  receives.assign(send.size(), -1);
  for (size_t e = 0; e < send.size(); ++e) {
    if (e != self) {
      receives[e] = wire.Receive(Channel::kExperts, order.ProcessOf(member(e)), receive[e]);
    }
  }
  for (size_t e = 0; e < send.size(); ++e) {
    if (e == self) continue;
    sends[e] = wire.Send(Channel::kExperts, order.ProcessOf(member(e)),
                         LabelOf(instruction, 0, send[e].size()), send[e], options.strict);
  }
  // Copied while the others are on their way.
  size_t wrong = send.size(), wrong_size = 0;
  if (send[self].size() == receive[self].size()) {
    std::copy(send[self].begin(), send[self].end(), receive[self].begin());
  } else {
    wrong = self;
    wrong_size = send[self].size();
  }
  for (size_t e = 0; e < send.size(); ++e) {
    if (e == self) continue;
    const Label label = Await(order.ProcessOf(member(e)), receives[e]).label;
    if (!SameExchange(label.instruction, instruction)) {
      throw OtherExchange(NameAt(device), instruction, NameAt(member(e)), label.instruction);
    }
    if (label.bytes == receive[e].size() || e > wrong) continue;
    wrong = e;
    wrong_size = label.bytes;
  }
  for (size_t e = 0; e < send.size(); ++e) {
    if (e != self) Await(order.ProcessOf(member(e)), sends[e]);
  }
  if (wrong < send.size()) {
    throw WrongPart(instruction, receive[wrong].size(), NameAt(member(wrong)), wrong_size);
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
    if (peer < 0 || peer >= state_->shape.ranks || peer == state_->device.rank) {
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
  if (std::find(holders.begin(), holders.end(), state_->device.rank) == holders.end()) {
    throw NoHolder();
  }
  const Reduction& reduction = state_->ReductionOf(reduce.stage, over, holders);
  if (reduction.processes.size() == 1) return Clock::now();
  const int32_t first_part = over == Over::kAllMembers ? 0 : kParts;
  return state_->AbortIfFails([&] { return state_->Sum(reduce, reduction, first_part, values); });
}

void ProcessTransport::AllToAll(const Instruction& instruction,
                                std::span<const std::span<const std::byte>> send,
                                std::span<const std::span<std::byte>> receive) {
  const auto members = static_cast<size_t>(state_->shape.expert_parallel);
  if (send.size() != members || receive.size() != members) {
    throw WrongParts(instruction, members, send.size(), receive.size());
  }
  state_->AbortIfFails([&] { state_->AllToAll(instruction, send, receive); });
}

void ProcessTransport::Abort() { state_->wire.Abort(); }

}  // namespace contraflow
