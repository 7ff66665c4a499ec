#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/links.h"
#include "runtime/gpu/run.h"
#include "tests/emulator/emulated_gpu.h"

namespace contraflow {

/// The names of kernels that have run, in the order in which they did.
using Executed = std::vector<std::string>;

/// A device whose instructions are kernels that only leave their names, which say what, on which
/// device and in which instruction: `compute 0.1.2#7` for the eighth instruction of rank 2 of
/// member 1 of replica 0; also `step`, `before` and `after` (an exchange), `begin` and `note`
/// (the last two without an instruction).
class NamedBackend : public GpuBackend {
 public:
  NamedBackend(const Plan& plan, Device device, Executed* executed);

  void Prepare(int step) override { prepared.emplace_back(step, executed_->size()); }
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
  void NoteFailure(gpu::Stream stream) override;
  void Download(int step, gpu::Stream stream) override;
  DeviceStep Results(int step) override;

  /// Launches `what 0.1.2#7`.
  void Launch(std::string_view what, const Instruction& instruction, gpu::Stream stream);

  std::vector<int> uploads, downloads;           ///< the steps that were
  std::vector<std::pair<int, size_t>> prepared;  ///< and prepared, when this many kernels had run

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
  /// Calls, as `transfer 2`: how many took part.
  std::vector<std::string> calls;

 private:
  void Meet(std::string_view what, std::span<const Participant> participants);
};

/// An issuer over backends of kind B and named links, and all that it needs.
template <typename B>
struct IssueOver {
  /// `make(device, gpu, lanes)` returns a backend.
  template <typename Make>
  IssueOver(const Plan& plan, const std::vector<Device>& devices, const IssueOptions& options,
            const Make& make, uint64_t seed = 1, std::function<void()> waiting = {})
      : gpu(EmulatedGpuOptions{.seed = seed, .log = &log}) {
    gpu.Partition(static_cast<int>(devices.size()), 8);
    std::vector<IssuedDevice> issued;
    for (const Device& device : devices) {
      lanes.push_back(
          std::make_unique<GpuLanes>(plan, device, gpu, static_cast<int>(issued.size()), 8));
      backends.push_back(make(device, gpu, *lanes.back()));
      issued.push_back({device, backends.back().get(), lanes.back().get()});
    }
    issuer = std::make_unique<GpuIssuer>(plan, issued, gpu, links, options, std::move(waiting));
  }

  /// Issues one step; the log and the kernels are this step's alone.
  void Step(int step) {
    log.clear();
    executed.clear();
    issuer->Step(step);
  }

  std::vector<GpuCall> log;
  Executed executed;
  EmulatedGpu gpu;
  NamedLinks links;
  std::vector<std::unique_ptr<GpuLanes>> lanes;
  std::vector<std::unique_ptr<B>> backends;
  std::unique_ptr<GpuIssuer> issuer;
};

/// The same over named backends.
struct Issue : IssueOver<NamedBackend> {
  Issue(const Plan& plan, const std::vector<Device>& devices, const IssueOptions& options,
        uint64_t seed = 1, std::function<void()> waiting = {})
      : IssueOver(
            plan, devices, options,
            [&](Device device, Gpu&, GpuLanes&) {
              return std::make_unique<NamedBackend>(plan, device, &executed);
            },
            seed, std::move(waiting)) {}
};

/// Reads the log of one step that was issued for all devices of the plan over such backends and
/// links, without stamps: every instruction once, on a stream that its lane has to itself, in
/// program order, after exactly those waits that its `after` names on other lanes (and that its
/// lane needs to begin with), for events that were recorded after them; every meeting complete;
/// all joined at the end. Returns the first thing that is not so, or "".
std::string FlawOfIssue(const Plan& plan, std::span<const GpuCall> log);

/// Like FlawOfIssue, of what has run: every kernel of every instruction once, after what its
/// `after` names, what stands before it on its lane, and the beginning of its device's step.
std::string FlawOfExecution(const Plan& plan, const Executed& executed);

}  // namespace contraflow
