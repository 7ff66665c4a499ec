#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/executor.h"
#include "runtime/core/run.h"
#include "runtime/core/walk.h"
#include "runtime/host/arenas.h"
#include "runtime/launch/control.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/launch/world.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// One device of custom stages that compute on the host.
class CustomBackend : public Backend {
 public:
  /// `stages` must outlive it. With `fill` memory without a value is full of NaN.
  CustomBackend(const CustomStages& stages, Device device, bool fill = kFillUnused);

  void BeginStep(int step) override;
  /// Throws Error if a loss is not finite; OptimizerStep, if a gradient is not: then nothing is
  /// updated.
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override { return Message(send); }
  void Sent(const Instruction& send) override { arenas_.Leave(device_.places().Of(send)); }
  std::span<std::byte> Incoming(const Instruction& receive) override { return Message(receive); }
  std::span<float> Gradients(int stage) override { return device_.At(stage).gradients(); }
  void OptimizerStep(int stage) override;

  CustomDevice& device() { return device_; }
  /// Of a step that has ended.
  DeviceStep Results(std::vector<Span> spans) const;

 private:
  std::span<std::byte> Message(const Instruction& message);

  const int stages_;
  std::vector<float> losses_;  // by micro-batch
  CustomDevice device_;
  HostArenas arenas_;
  int step_ = 0;
};

/// Trains custom stages with a plan on the host: every device is a thread of this process.
class CustomRun {
 public:
  /// `stages` must outlive the run. Throws Error if a stage cannot be made.
  CustomRun(const CustomStages& stages, ThreadNetwork::Options options, bool fill = kFillUnused);

  /// Steps count from 1. After an error the run is good for nothing but its destruction.
  StepResult Step(int step);
  const std::vector<Device>& devices() const { return devices_; }
  CustomDevice& At(Device device) { return backends_[DeviceNumber(plan_, device)]->device(); }

 private:
  const Plan& plan_;
  ThreadNetwork network_;
  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<CustomBackend>> backends_;  // by device
  std::optional<Launch> launch_;
};

/// Trains custom stages with a plan on the host: this process is one of its devices, the others of
/// the job are the others. Process 0 gets what all of them did.
class CustomProcessRun {
 public:
  /// The order has as many processes as the job. What is passed must outlive the run. Throws Error
  /// if a stage cannot be made.
  CustomProcessRun(const CustomStages& stages, const RankOrder& order, Transport& transport,
                   Control& control, Progress& progress, bool fill = kFillUnused);

  StepResult Step(int step);
  const std::vector<Device>& devices() const { return devices_; }
  CustomDevice& At(Device device);

 private:
  const Plan& plan_;
  const RankOrder& order_;
  Control& control_;
  const std::vector<Device> devices_;
  CustomBackend backend_;
  Executor executor_;
};

/// Where stages compute one after the other, without a plan's arenas and streams: the host, or what
/// overrides it.
class CustomPlace {
 public:
  virtual ~CustomPlace() = default;
  /// As of CustomStage.
  virtual void* stream() const { return nullptr; }
  virtual int sms() const { return 0; }
  /// 64-byte aligned, for as long as this lives.
  virtual std::byte* Allocate(size_t bytes);
  /// All parts, of one size, become their sum, added in their order.
  virtual void Sum(const std::vector<std::span<float>>& parts);
  /// Those bytes as they are behind all work so far: where they are, or in `room` on the host.
  virtual std::span<const std::byte> Read(const void* at, size_t bytes,
                                          std::vector<std::byte>* room);

 private:
  std::vector<Buffer<std::byte>> memory_;
};

/// The same training without a pipeline, one micro-batch after the other through all stages: what a
/// run must equal, bit for bit. Sums are taken in the order of the plan: over the micro-batches of
/// each copy of a stage as its rank has them, then over replicas, members and copies. Every copy is
/// a stage of its own here too.
class CustomSerialRun {
 public:
  /// Both must outlive it.
  CustomSerialRun(const CustomStages& stages, CustomPlace& place);

  /// Returns the losses, [replica][member][micro-batch].
  std::vector<float> Step(int step);
  CustomStage& At(Device device, int stage) {
    return *copies_.at({DeviceNumber(plan_, device), stage});
  }
  CustomPlace& place() { return place_; }

 private:
  void Train(const SerialOrder::Pass& pass, int replica);

  const Plan& plan_;
  CustomPlace& place_;
  const SerialOrder order_;
  float* const losses_;                                                    // at the place
  const std::vector<int> route_of_;                                        // by micro-batch
  std::map<std::pair<size_t, int>, std::unique_ptr<CustomStage>> copies_;  // by device and stage
  // By stage, of the micro-batch under way: what it has, and what it gets from its neighbours.
  std::vector<std::vector<std::byte*>> values_;  // null: has none
};

/// Compares a step with the same one of the serial run, which does it now: every loss (in the
/// process that knows them), and all gradients and blocks of every copy that the devices have, bit
/// for bit. `device_at` gives a device of the run, whose memory is that of the serial run's place.
/// Returns where they first differ; "": nowhere.
/// `bytes` grows by how many were compared.
std::string DifferenceOf(const Plan& plan, int step, const StepResult& result,
                         const std::vector<Device>& devices,
                         const std::function<CustomDevice&(Device)>& device_at,
                         CustomSerialRun& serial, int64_t* bytes);

}  // namespace contraflow
