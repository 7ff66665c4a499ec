#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// The share of one micro-batch of one device in the loss of a step.
float LossScale(const Plan& plan);

/// How many micro-batches a step has over all replicas and members, and the place of one among
/// them, and of its loss: [replica][member][micro-batch].
size_t MicrobatchesOfStep(const Plan& plan);
size_t MicrobatchPlace(const Plan& plan, int replica, int member, int microbatch);

/// The step of one device.
struct DeviceStep {
  std::vector<std::pair<int, float>> losses;  ///< of the micro-batches that end here: number, loss
  int64_t dropped = 0;                        ///< (token, expert) pairs without capacity
  std::map<std::string, double> squares;  ///< of the gradients it has, by block; only to clip them
  std::vector<Span> spans;                ///< by instruction of its program
};

/// The result of a step of training.
struct StepResult {
  double loss = 0;            ///< mean over all micro-batches, members and replicas
  std::vector<float> losses;  ///< [replica][member][micro-batch]
  int64_t dropped = 0;        ///< (token, expert) pairs that an expert had no capacity for
  double gradient_norm = 0;   ///< before clipping; 0 where nothing limits it
  Time duration = 0;          ///< of the whole step, in nanoseconds
  Timeline timeline;          ///< measured, of replica 0
};

/// Joins what the devices did, in the order of their numbers; of no devices, which is what a
/// process other than 0 knows of, the result has the duration alone. Throws Error if a loss is
/// missing.
StepResult JoinDevices(const Plan& plan, std::span<const DeviceStep> devices, Time duration);

/// The norm of all gradients from the squares of all blocks, each once: summed in the order of the
/// names, so that it does not depend on any partition.
double NormOf(const std::map<std::string, double>& squares);

}  // namespace contraflow
