#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/plan.h"
#include "compiler/timeline.h"
#include "runtime/host_backend.h"
#include "runtime/launch.h"
#include "runtime/thread_transport.h"

namespace contraflow {

/// What a step of training gave.
struct StepResult {
  double loss = 0;            ///< mean over all micro-batches, members and replicas
  std::vector<float> losses;  ///< [replica][member][micro-batch]
  int64_t dropped = 0;        ///< (token, expert) pairs that an expert had no capacity for
  Time duration = 0;          ///< of the whole step, in nanoseconds
  Timeline timeline;          ///< measured, of replica 0
};

/// Mean of the losses, summed in their order.
double MeanLoss(const std::vector<float>& losses);

/// Trains with a plan on the host: every device is a thread of this process.
class ThreadedRun {
 public:
  /// The plan is sound (Verify), the model fitted to its stages. Plan, model and text must outlive
  /// the run. With `fill` memory without a value is full of NaN. Throws Error if the plan cannot be
  /// executed or is too large for one process.
  ThreadedRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed,
              ThreadNetwork::Options options, bool fill = kFillUnused);

  /// One step; steps count from 1. After an error the run cannot go on.
  StepResult Step(int step);

  HostBackend& At(Device device);

 private:
  std::vector<float> CollectLosses();

  const Plan& plan_;
  ThreadNetwork network_;
  std::vector<std::unique_ptr<HostBackend>> backends_;  // replica by replica, member by member
  std::optional<Launch> launch_;
};

}  // namespace contraflow
