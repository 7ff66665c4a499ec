#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "runtime/gpu_backend.h"
#include "runtime/gpu_links.h"
#include "tests/emulated_gpu.h"

namespace contraflow {

/// The names of kernels that have run, in the order in which they did.
using Executed = std::vector<std::string>;

/// All devices of a plan, or those of one replica, member and rank.
std::vector<Device> AllDevicesOf(const Plan& plan);

/// A device whose instructions are kernels that only leave their names, which say what, on which
/// device and in which instruction: `compute 0.1.2#7` for the eighth instruction of rank 2 of
/// member 1 of replica 0; also `step`, `before` and `after` (an exchange), `begin` and `download`
/// (the last two without an instruction).
class NamedBackend : public GpuBackend {
 public:
  NamedBackend(const Plan& plan, Device device, Executed* executed);

  void Upload(int step, gpu::Stream stream) override;
  void BeginStep(gpu::Stream stream) override;
  void Compute(const Instruction& component, gpu::Stream stream) override;
  void BeforeExchange(const Instruction& component, gpu::Stream stream) override;
  void AfterExchange(const Instruction& component, gpu::Stream stream) override;
  ExchangePart Exchange(const Instruction& component) override;
  std::span<std::byte> Message(const Instruction& message) override;
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  void OptimizerStep(int stage, gpu::Stream stream) override;
  void Download(gpu::Stream stream) override;
  DeviceStep Results() override;

  /// Launches `what 0.1.2#7`.
  void Launch(std::string_view what, const Instruction& instruction, gpu::Stream stream);

  std::vector<int> uploads;  ///< the steps that were uploaded

 private:
  void Launch(const std::string& name, gpu::Stream stream);
  std::string name() const;

  const Program& program_;
  const Device device_;
  Executed* const executed_;
};

/// Links that launch such a kernel for each participant: `transfer`, `exchange` or `sum`.
class NamedLinks : public GpuLinks {
 public:
  void Transfer(std::span<const Participant> ends) override { Meet("transfer", ends); }
  void Exchange(std::span<const Participant> members) override { Meet("exchange", members); }
  void Sum(std::span<const Participant> holders) override { Meet("sum", holders); }
  void BeginGroup() override { calls.push_back("begin group"); }
  void EndGroup() override { calls.push_back("end group"); }

  /// If not null, participants of a transfer or a sum wait for each other there.
  Gpu* joining = nullptr;
  /// What was called, as `transfer 2`: how many took part.
  std::vector<std::string> calls;

 private:
  void Meet(std::string_view what, std::span<const Participant> participants);
};

/// Reads the log of one step that was issued for all devices of the plan over such backends and
/// links, without stamps: every instruction once, on a stream that its lane has to itself, in
/// program order, behind exactly those waits that its `after` names on other lanes (and that its
/// lane needs to begin with), for events that were recorded behind them; every meeting complete;
/// all joined at the end. Returns the first thing that is not so, or "".
std::string FlawOfIssue(const Plan& plan, std::span<const GpuCall> log);

/// The same of what has run: every kernel of every instruction once, behind what its `after` names,
/// what stands before it on its lane, and the beginning of its device's step.
std::string FlawOfExecution(const Plan& plan, const Executed& executed);

}  // namespace contraflow
