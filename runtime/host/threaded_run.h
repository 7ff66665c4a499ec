#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/run.h"
#include "runtime/host/backend.h"
#include "runtime/launch/launch.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// Trains with a plan on the host: every device is a thread of this process.
class ThreadedRun : public Run {
 public:
  /// The plan is sound (Verify), the model fitted to its stages. Plan, model and text must outlive
  /// the run. With `fill` memory without a value is full of NaN. Throws Error if the plan cannot be
  /// executed or is too large for one process.
  ThreadedRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed,
              ThreadNetwork::Options options, bool fill = kFillUnused);

  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return devices_; }
  Stage& StageAt(Device device, int stage) override;
  void Put(Device device, int stage) override;
  const std::array<int64_t, kArenaCount>& ArenasAt(Device device) override;
  HostBackend& At(Device device);

 private:
  const Plan& plan_;
  ThreadNetwork network_;
  std::vector<Device> devices_;                         // replica by replica, member by member
  std::vector<std::unique_ptr<HostBackend>> backends_;  // by device
  std::optional<Launch> launch_;
};

}  // namespace contraflow
