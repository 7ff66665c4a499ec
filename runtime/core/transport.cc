#include "runtime/core/transport.h"

#include <algorithm>

namespace contraflow {

Tag TagOf(const Instruction& message) {
  const Op op = message.op;
  CF_ASSERT(WorkOf(op) == Work::kSend || WorkOf(op) == Work::kRecv);
  int producer = message.stage;
  if (op == Op::RECV_F) --producer;  // Names the stage that it is the input of.
  if (op == Op::RECV_B) ++producer;  // Names the stage whose output it is the gradient of.
  return {op == Op::SEND_F || op == Op::RECV_F, producer, message.microbatch};
}

Aborted::Aborted() : Error("stopped because another rank failed") {}

namespace {

Error OtherOrder(const std::string& rule, const std::string& self, const Instruction& here,
                 const std::string& who, const Instruction& there) {
  return Error(rule + ", but " + self + " is at " + ToString(here) + " and " + who + " at " +
               ToString(there) + "; verify the plan");
}

}  // namespace

void BeginPost(std::span<Transfer* const> group, int self, int ranks) {
  const Clock::time_point posted = Clock::now();
  for (Transfer* transfer : group) {
    CF_ASSERT(!transfer->done);
    const int peer = transfer->instruction.peer;
    if (peer < 0 || peer >= ranks || peer == self) {
      throw Error("there is no other rank " + std::to_string(peer) + " to exchange messages with");
    }
    transfer->start = posted;
  }
}

void RequireHolder(std::span<const int> holders, int rank) {
  if (std::find(holders.begin(), holders.end(), rank) != holders.end()) return;
  throw Error("this rank holds no copy of the stage");
}

void RequireParts(const Instruction& exchange, size_t members, size_t send, size_t receive) {
  if (send == members && receive == members) return;
  throw Error(ToString(exchange) + ": an expert group of " + std::to_string(members) +
              " cannot exchange " + std::to_string(send) + " and " + std::to_string(receive) +
              " parts");
}

Error WrongMessage(const Instruction& receive, const std::string& who, const Instruction& sent) {
  return Error(ToString(receive) + " got the wrong message: " + who + " sent " + ToString(sent) +
               " first; verify the plan");
}

Error WrongSize(const Instruction& receive, size_t expected, const std::string& who,
                uint64_t sent) {
  return Error(ToString(receive) + " expects " + std::to_string(expected) + " bytes, but " + who +
               " sent " + std::to_string(sent));
}

Error OtherCount(size_t count, const std::string& who) {
  return Error("has " + std::to_string(count) + " gradients to sum, but " + who +
               " another number");
}

Error WrongPart(const Instruction& exchange, size_t expected, const std::string& who,
                uint64_t sent) {
  return Error(ToString(exchange) + " expects " + std::to_string(expected) + " bytes from " + who +
               ", which sends " + std::to_string(sent));
}

Error OtherExchange(const std::string& self, const Instruction& here, const std::string& who,
                    const Instruction& there) {
  return OtherOrder("an expert group must exchange in one order", self, here, who, there);
}

Error OtherReduction(const std::string& self, const Instruction& here, const std::string& who,
                     const Instruction& there) {
  return OtherOrder("the holders of a stage must reduce in one order", self, here, who, there);
}

bool SameExchange(const Instruction& a, const Instruction& b) {
  return a.op == b.op && a.stage == b.stage && a.layer == b.layer && a.microbatch == b.microbatch;
}

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

}  // namespace contraflow
