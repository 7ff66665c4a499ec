#pragma once

#include <map>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/transport.h"
#include "runtime/launch/world.h"
#include "runtime/transport/process_peers.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// Joins devices that are processes of their own, over any Wire. The same semantics and bits as the
/// threads' transport. REDUCE: each holder adds up one share of the elements, of all parts in their
/// order, and sends it back to all. All memory it needs beyond the caller's is allocated the first
/// time a reduction or exchange of that size comes.
class ProcessTransport : public Transport {
 public:
  struct Options {
    bool strict = false;  ///< rendezvous: Post returns only when every message was taken
  };

  /// The device of process wire.self(). Wire, and `progress` (may be null), which is told whom this
  /// process waits for, must outlive it; the plan and the order need not.
  ProcessTransport(const Plan& plan, const RankOrder& order, Wire& wire, Progress* progress,
                   Options options);
  ~ProcessTransport() override;

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

  Device RankAt(int rank) const { return {peers_.device().replica, peers_.device().member, rank}; }
  Device MemberAt(size_t member) const {
    return {peers_.device().replica, static_cast<int>(member), peers_.device().rank};
  }
  void Start(Transfer* transfer);
  bool Test(size_t place);
  size_t PlaceOf(const Transfer& transfer) const;
  void Check(const Transfer& receive, const Label& label) const;
  void Exchange(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);
  template <typename WorkOnMemory>
  auto AbortIfFails(const WorkOnMemory& work);

  const Options options_;
  Wire& wire_;
  const ProcessPeers peers_;
  OrderedSum sum_;
  std::map<std::pair<bool, Tag>, int64_t> index_of_;  // instructions, by whether they send
  std::vector<Pending> pending_;                      // as posted
  std::vector<int> sends_, receives_;                 // tickets of an exchange, by member
};

}  // namespace contraflow
