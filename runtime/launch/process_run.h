#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "runtime/core/bytes.h"
#include "runtime/core/devices.h"
#include "runtime/core/executor.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/core/step.h"
#include "runtime/host/backend.h"
#include "runtime/launch/control.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/transport/shared_memory.h"
#include "runtime/transport/shm_wire.h"
#include "runtime/transport/wire_transport.h"

namespace contraflow {

/// A fact that all processes of a job must have alike before its first step.
struct Fact {
  std::string noun;   ///< "plan", "seed", ...
  std::string key;    ///< the text that is compared
  std::string shown;  ///< the text of a message, e.g. with the path; may differ

  bool operator==(const Fact&) const = default;
};

/// Turn the facts of a process into bytes for another one, and back. ReadFacts throws Error if the
/// bytes are no facts.
std::string WriteFacts(std::span<const Fact> facts);
std::vector<Fact> ReadFacts(std::string_view bytes);

/// Returns "" if all processes have the facts of process 0. Otherwise names the first process that
/// has not, its first fact that differs with both values, and the other processes that disagree.
/// Facts are compared in their order. `name` gives the name of a process.
std::string Disagreement(std::span<const std::vector<Fact>> by_process,
                         const std::function<std::string(int process)>& name);

/// Says for a report at which place a process is: "step 3, instruction 17 (RECV_F s1 m4 from=0),
/// waits for rank 0". `plan` may be null: not known yet.
std::string DescribeProgress(const Plan* plan, const RankOrder* order, int process,
                             const Progress::Snapshot& at);

/// Turn a step of a device into bytes for another process, and back. ReadDeviceStep throws Error if
/// the bytes are no step.
std::string WriteDeviceStep(const DeviceStep& step);
DeviceStep ReadDeviceStep(std::string_view bytes);

/// Returns the steps of all devices of a job, by DeviceNumber, in process 0; in the others none.
/// All processes call it, each with its own. Throws Error if one has the spans of another plan.
std::vector<DeviceStep> GatherSteps(const Plan& plan, const RankOrder& order, Control& control,
                                    const DeviceStep& here);

/// Walks a step of a device in this thread. An error names the device.
void Walk(const Plan& plan, Device device, int step, Executor* executor);

/// All that a process of a job needs to be one device of a plan on the host. The arguments must
/// outlive the run.
struct HostProcess {
  const RankOrder& order;  ///< as many processes as the job has
  Control& control;        ///< its OnStop is taken until the end of the run
  Progress& progress;
  std::function<std::string(int process)> name;
  bool strict = false;  ///< as of WireTransport
};

/// Maps memory that all processes of a job share, for wires with messages of `message_bytes`
/// between stages. All processes call it, and none returns before all have it. Throws Error where
/// this one cannot reach it, Aborted where another cannot.
std::unique_ptr<SharedMemory> ShareMemory(Control& control, int64_t message_bytes);

/// One device of a plan, which is this process of a job. The others are processes of this machine,
/// with which it shares memory.
template <typename B>
class DeviceProcess : public HostDevices<B> {
 public:
  /// `make(device, transport)` returns the backend; `message_bytes` as of ShareMemory.
  template <typename Make>
  DeviceProcess(const Plan& plan, const HostProcess& process, int64_t message_bytes,
                const Make& make)
      : plan_(plan),
        order_(process.order),
        control_(process.control),
        devices_{order_.DeviceOf(control_.rank())},
        memory_(ShareMemory(control_, message_bytes)),
        wire_(*memory_, control_.rank(), process.name),
        transport_(plan, order_, wire_, &process.progress, process.strict),
        backend_(make(devices_[0], transport_)),
        executor_(plan, devices_[0].rank, *backend_, transport_, &process.progress) {
    control_.OnStop([this] { transport_.Abort(); });
  }
  ~DeviceProcess() override { control_.OnStop({}); }

  /// Walks a step; then all processes gather the steps of all devices in process 0. An error names
  /// the device.
  StepResult Step(int step) override {
    const Clock::time_point start = Clock::now();
    Walk(plan_, devices_[0], step, &executor_);
    const DeviceStep here = backend_->Results(executor_.spans());
    const std::vector<DeviceStep> steps = GatherSteps(plan_, order_, control_, here);
    return JoinDevices(plan_, steps, Nanoseconds(Clock::now() - start));
  }
  const std::vector<Device>& devices() const override { return devices_; }
  B& At(Device device) const override {
    CF_ASSERT(device == devices_[0]);
    return *backend_;
  }
  double Shared(double number) override {
    const std::string bytes = control_.Broadcast(ByteWriter().Put(number).Take());
    return ByteReader(bytes, "a number of process 0 is").Take<double>();
  }

 private:
  const Plan& plan_;
  const RankOrder& order_;
  Control& control_;
  const std::vector<Device> devices_;
  const std::unique_ptr<SharedMemory> memory_;
  ShmWire wire_;
  WireTransport transport_;
  const std::unique_ptr<B> backend_;
  Executor executor_;
};

/// Trains with a plan on the host: this process is one of its devices, the others of the job are
/// the others. Process 0 gets what all of them did.
class ProcessRun : public HostRun {
 public:
  /// The plan is sound (Verify), and the model fitted to its stages. All arguments must outlive the
  /// run. With `fill` memory without a value is full of NaN. Throws Error if the plan cannot be
  /// executed or memory does not suffice.
  ProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
             const HostProcess& process, bool fill = kFillUnused);
};

}  // namespace contraflow
