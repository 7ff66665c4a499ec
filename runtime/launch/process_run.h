#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/executor.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/host/backend.h"
#include "runtime/host/run.h"
#include "runtime/launch/control.h"
#include "runtime/transport/shared_memory.h"

namespace contraflow {

/// Something that all processes of a job must have alike before its first step.
struct Fact {
  std::string noun;   ///< "plan", "seed", ...
  std::string key;    ///< what is compared
  std::string shown;  ///< how a message shows it, e.g. with the path; may differ

  bool operator==(const Fact&) const = default;
};

/// The facts of a process as bytes, for another one, and back. ReadFacts throws Error if they are
/// no such facts.
std::string WriteFacts(std::span<const Fact> facts);
std::vector<Fact> ReadFacts(std::string_view bytes);

/// "" if all processes have the same facts as process 0, else what the first that has not has
/// differently, with both values, and who else does not agree. Facts are compared in their order:
/// what explains others comes first. `name` is what a process is called.
std::string Disagreement(std::span<const std::vector<Fact>> by_process,
                         const std::function<std::string(int process)>& name);

/// Walks a step of this process's device; then all processes gather what the devices did, by
/// DeviceNumber, in process 0. An error names the device. `results` makes the device's step of the
/// times that its instructions took.
std::vector<DeviceStep> WalkAndGather(const Plan& plan, const RankOrder& order, Control& control,
                                      Device device, int step, Executor* executor,
                                      const std::function<DeviceStep(std::vector<Span>)>& results);

/// Maps memory that all processes of a job share, for wires with messages of `message_bytes`
/// between stages. All processes call it, and none returns before all have it. Throws Error where
/// this one cannot reach it, Aborted where another cannot.
std::unique_ptr<SharedMemory> ShareMemory(Control& control, int64_t message_bytes);

/// Trains with a plan on the host: this process is one of its devices, the others of the job are
/// the others. Process 0 gets what all of them did.
class ProcessRun : public Run {
 public:
  /// The plan is sound (Verify), the model fitted to its stages, and the order has as many
  /// processes as the job. What is passed must outlive the run. With `fill` memory without a value
  /// is full of NaN. Throws Error if the plan cannot be executed or memory does not suffice.
  ProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
             const RankOrder& order, Transport& transport, Control& control, Progress& progress,
             bool fill = kFillUnused);

  /// All processes begin together (Control::Barrier), as their measured times count from there.
  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return devices_; }
  HostBackend& At(Device device) override;

 private:
  const Plan& plan_;
  const RankOrder& order_;
  Control& control_;
  const bool clips_;
  const std::vector<Device> devices_;
  HostBackend backend_;
  Executor executor_;
};

/// What a process does, for a report: "step 3, instruction 17 (RECV_F s1 m4 from=0), waits for
/// rank 0". `plan` may be null: not known yet.
std::string DescribeProgress(const Plan* plan, const RankOrder* order, int process,
                             const Progress::Snapshot& at);

/// A step of a device as bytes, for other processes, and back. Throws Error if they are no such
/// step.
std::string WriteDeviceStep(const DeviceStep& step);
DeviceStep ReadDeviceStep(std::string_view bytes);

/// The steps of all devices of a job, by DeviceNumber, in process 0; in the others nothing. All
/// processes call it, each with its own.
std::vector<DeviceStep> GatherSteps(const Plan& plan, const RankOrder& order, Control& control,
                                    const DeviceStep& here);

}  // namespace contraflow
