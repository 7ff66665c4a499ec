#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/transport.h"
#include "runtime/launch/world.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// The devices of a plan as processes on a wire: who is where, and waiting for one of them.
class ProcessPeers {
 public:
  ProcessPeers(const Plan& plan, const RankOrder& order, Wire& wire, Progress* progress);

  const Device& device() const { return device_; }  ///< of this process
  int ranks() const { return sizes_.ranks; }
  int replicas() const { return sizes_.data_parallel; }
  int members() const { return sizes_.expert_parallel; }
  int ProcessOf(Device other) const { return order_.ProcessOf(other); }
  std::string NameOf(Device other) const;

  Wire& wire() const { return wire_; }
  /// Something was done.
  void Move() const;

  /// Returns once `done()`; says meanwhile whom this process waits for.
  template <typename Done>
  void WaitFor(int process, int64_t instruction, const Done& done) const {
    if (done()) return;
    if (progress_ != nullptr) progress_->WaitFor(process, instruction);
    do wire_.Pause();
    while (!done());
    if (progress_ != nullptr) progress_->WaitFor(Progress::kNobody);
  }
  /// Returns once what is under way with a process is done.
  Wire::Status Await(int process, int ticket) const;

 private:
  const RankOrder order_;
  Wire& wire_;
  Progress* const progress_;
  const Device device_;
  Plan sizes_;  // nothing but numbers of devices
};

/// Transport::Sum between processes. Every part adds up one share of the elements, of all parts in
/// their order, and sends it back: each element travels twice, and is added in one order, at one
/// place.
class OrderedSum {
 public:
  /// With `rendezvous`, messages are sent like that. The peers must outlive it.
  OrderedSum(const ProcessPeers& peers, bool rendezvous) : peers_(peers), rendezvous_(rendezvous) {}

  /// As Transport::Sum; this process is one of the holders. If it throws, messages of `values` may
  /// be under way.
  Clock::time_point Run(const Instruction& reduce, Transport::Over over,
                        std::span<const int> holders, std::span<float> values);

 private:
  /// Who takes part, in the order in which they are added.
  struct Parts {
    std::vector<Device> devices;
    std::vector<int> processes;
    size_t place = 0;  // of this one
  };

  const Parts& PartsOf(int stage, Transport::Over over, std::span<const int> holders);
  template <typename Send, typename Receive>
  void Begin(const Parts& parts, const Label& label, const Send& send, const Receive& receive);
  Clock::time_point Finish(const Parts& parts, const Label& label);

  const ProcessPeers& peers_;
  const bool rendezvous_;
  std::map<std::pair<int, Transport::Over>, Parts> parts_;  // by stage
  // Of the sum under way, by part:
  std::vector<int> sends_, receives_;  // tickets
  std::vector<uint64_t> sizes_;
  std::vector<std::span<const float>> shares_;
  std::vector<float> scratch_;  // where the shares of others are
};

}  // namespace contraflow
