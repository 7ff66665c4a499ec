#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/transport.h"
#include "runtime/host/backend.h"

namespace contraflow {

/// What a step of training gave.
struct StepResult {
  double loss = 0;            ///< mean over all micro-batches, members and replicas
  std::vector<float> losses;  ///< [replica][member][micro-batch]
  int64_t dropped = 0;        ///< (token, expert) pairs that an expert had no capacity for
  Time duration = 0;          ///< of the whole step, in nanoseconds
  Timeline timeline;          ///< measured, of replica 0
};

/// What one device did in a step.
struct DeviceStep {
  std::vector<std::pair<int, float>> losses;  ///< of the micro-batches that end here: number, loss
  int64_t dropped = 0;
  std::vector<Span> spans;  ///< by instruction of its program
};

/// Of a backend that has just ended a step.
DeviceStep DeviceStepOf(const HostBackend& backend, const std::vector<Span>& spans);

/// Mean of the losses, summed in their order.
double MeanLoss(const std::vector<float>& losses);

/// The device's place among all devices of a plan: replica by replica, member by member, rank by
/// rank.
size_t DeviceNumber(const Plan& plan, Device device);
/// Replicas x members x ranks.
size_t DeviceCount(const Plan& plan);
/// In the order of their numbers.
std::vector<Device> AllDevices(const Plan& plan);

/// Joins what the devices did, in the order of their numbers; of no devices, which is what a
/// process other than 0 knows of, the result has the duration alone. Throws Error if a loss is
/// missing.
StepResult JoinDevices(const Plan& plan, std::span<const DeviceStep> devices, Time duration);

/// A training with a plan, as one process sees it.
class Run {
 public:
  virtual ~Run() = default;

  /// One step; steps count from 1. All processes of the run call it. The result is complete in
  /// process 0, elsewhere it has no losses and no timeline. After an error the run cannot go on.
  virtual StepResult Step(int step) = 0;
  /// The devices that this process has.
  virtual const std::vector<Device>& devices() const = 0;
  /// One of them, as long as the run.
  virtual StageHolder& At(Device device) = 0;
};

/// What this process saves of a run: over all processes every block of the model exactly once. Of
/// the copies of a stage that is the one of replica 0 on its first holder, and of what every member
/// of an expert group has, member 0's.
std::vector<StateBlock> SavedState(const Plan& plan, Run& run);

/// Everything that this process has of a run, every copy of it.
std::vector<StateBlock> WholeState(const Plan& plan, Run& run);

/// What was changed there holds from now on.
void PutState(const Plan& plan, Run& run);

/// SHA-256 of the parameters of each block, by name; as bytes for other processes, and back.
/// Throws Error if they are no such digests.
std::map<std::string, Digest> ParameterDigests(const std::vector<StateBlock>& blocks);
std::string WriteDigests(const std::map<std::string, Digest>& digests);
std::map<std::string, Digest> ReadDigests(std::string_view bytes);

}  // namespace contraflow
