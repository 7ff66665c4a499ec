#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/core/transport.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// Joins the devices of a plan over any Wire: the same semantics and bits on all of them. REDUCE:
/// each part adds up one share of the elements, of all parts in their order, and sends it back to
/// all, so each element travels twice and is added in one order, at one place. All memory it needs
/// beyond the caller's is allocated the first time a reduction or exchange of that size comes.
class WireTransport : public Transport {
 public:
  /// The device of process wire.self(). With `strict` Post returns only when every message of the
  /// group was taken by its receiver, the strictest semantics a plan is verified for; otherwise it
  /// never waits. Plan, wire, and `progress` (may be null), which is told whom this process waits
  /// for, must outlive it.
  WireTransport(const Plan& plan, const RankOrder& order, Wire& wire, Progress* progress,
                bool strict);
  ~WireTransport() override;

  void Post(std::span<Transfer* const> group) override;
  bool Done(Transfer& transfer) override;
  void Wait(Transfer& transfer) override;
  void Poll() override;
  Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                        std::span<float> values) override;
  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override;
  void Abort() override;

 private:
  /// A transfer that is not done.
  struct Pending {
    Transfer* transfer;
    int ticket;
  };
  /// The members of a sum or an exchange, in the order in which they are added.
  struct Parts {
    std::vector<Device> devices;
    std::vector<int> processes;
    size_t place = 0;  // of this one
  };

  Device RankAt(int rank) const { return {device_.replica, device_.member, rank}; }
  std::string NameOf(Device other) const { return contraflow::NameOf(plan_, other); }
  template <typename IsDone>
  void WaitFor(int process, int64_t index, const Instruction& at, const IsDone& done);
  Wire::Status Await(int process, int ticket, const Instruction& at);
  bool Test(size_t place);
  size_t PlaceOf(const Transfer& transfer) const;
  void Check(const Transfer& receive, const Label& label) const;
  Error OtherOrder(const char* rule, const Instruction& here, Device who,
                   const Instruction& there) const;
  void Add(Parts* parts, Device device) const;
  const Parts& SummedBy(int stage, Over over, std::span<const int> holders);
  template <typename Send, typename Receive, typename Look>
  Clock::time_point Round(Wire::Channel channel, const Parts& parts, Label label, const Send& send,
                          const Receive& receive, const Look& look);
  template <typename WorkOnMemory>
  auto AbortIfFails(const WorkOnMemory& work);

  const Plan& plan_;
  const RankOrder order_;
  Wire& wire_;
  Progress* const progress_;
  const bool strict_;
  const Device device_;
  std::map<std::pair<bool, Tag>, int64_t> index_of_;  // instructions, by whether they send
  std::vector<Pending> pending_;                      // as posted
  Parts members_;                                     // of this one's expert group
  std::map<std::pair<int, Over>, Parts> parts_;       // of sums, by stage
  // State of the sum or exchange under way, by part:
  std::vector<int> sends_, receives_;  // tickets
  std::vector<std::span<const float>> shares_;
  std::vector<float> scratch_;  // where the shares of others are
};

}  // namespace contraflow
