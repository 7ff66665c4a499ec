#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "kernels/host/buffer.h"
#include "runtime/core/devices.h"
#include "runtime/core/serial_order.h"
#include "runtime/core/step.h"
#include "runtime/stages/custom_stages.h"

namespace contraflow {

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
