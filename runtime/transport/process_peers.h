#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
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

}  // namespace contraflow
