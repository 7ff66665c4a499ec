#include "runtime/gpu/run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/links.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/custom_device.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/state_copies.h"

namespace contraflow {
namespace {

SmBudget BudgetFor(const Plan& plan, const Gpu& gpu, int partition_sms) {
  // More than any GPU has SMs is as wrong as any such number.
  constexpr size_t kTooMany = 1 << 20;
  return BudgetOf(gpu.sms(), static_cast<int>(std::min(DeviceCount(plan), kTooMany)), UseOf(plan),
                  partition_sms);
}

/// Returns the budget of devices that share the first partition of a run with this budget.
SmBudget Beside(SmBudget budget) {
  budget.partitions = 1;
  budget.link_ctas = std::max(budget.link_ctas, 1);
  return budget;
}

}  // namespace

struct VirtualRanks::Impl {
  Impl(const Plan& the_plan, Gpu& the_gpu, const GpuRunOptions& options, const MakeGpuBackend& make,
       const SmBudget* beside)
      : plan(the_plan),
        gpu(the_gpu),
        budget(beside ? Beside(*beside) : BudgetFor(plan, gpu, options.partition_sms)) {
    if (!beside) gpu.Partition(budget.partitions, budget.sms);
    devices = AllDevices(plan);
    std::vector<gpu::Stream> streams;
    for (size_t d = 0; d < devices.size(); ++d) {
      const int partition = beside ? 0 : static_cast<int>(d);
      lanes.push_back(std::make_unique<GpuLanes>(plan, devices[d], gpu, partition, budget.compute));
      const std::vector<gpu::Stream>& here = lanes.back()->streams();
      streams.insert(streams.end(), here.begin(), here.end());
    }
    std::vector<IssuedDevice> issued;
    for (size_t d = 0; d < devices.size(); ++d) {
      backends.push_back(make(devices[d], lanes[d]->streams()[GpuLanes::kCompute], budget.compute));
      issued.push_back({devices[d], backends[d].get(), lanes[d].get()});
    }
    links = std::make_unique<VirtualLinks>(plan, budget, gpu, streams);
    issuer = std::make_unique<GpuIssuer>(plan, std::move(issued), gpu, *links, options, [this] {
      for (GpuStateCopies& each : copies) each.Poll();
      if (watch) watch->Look();
    });
    if (options.timeout.count() == 0) return;
    std::vector<HangWatch::Watched> watched;
    for (size_t d = 0; d < devices.size(); ++d) {
      watched.push_back({devices[d], issuer->StampsOf(d)});
    }
    watch = std::make_unique<HangWatch>(plan, std::move(watched), gpu, options.timeout);
  }

  const Plan& plan;
  Gpu& gpu;
  const SmBudget budget;
  std::vector<Device> devices;
  std::vector<std::unique_ptr<GpuLanes>> lanes;       // by device
  std::vector<std::unique_ptr<GpuBackend>> backends;  // by device
  std::unique_ptr<VirtualLinks> links;
  std::unique_ptr<GpuIssuer> issuer;
  std::unique_ptr<HangWatch> watch;   // none without a timeout
  std::deque<GpuStateCopies> copies;  // that were asked for
  Clock::time_point ended;            // the last step
};

VirtualRanks::VirtualRanks(const Plan& plan, Gpu& gpu, const GpuRunOptions& options,
                           const MakeGpuBackend& make, const SmBudget* beside)
    : impl_(std::make_unique<Impl>(plan, gpu, options, make, beside)) {}

VirtualRanks::~VirtualRanks() = default;

StepResult VirtualRanks::Step(int step) {
  // A step that was begun ahead runs since the one before it.
  const Clock::time_point start = impl_->issuer->begun_ahead() ? impl_->ended : Clock::now();
  if (impl_->watch != nullptr) impl_->watch->Begin(step, impl_->issuer->StampsIn(step));
  impl_->issuer->Step(step);
  impl_->ended = Clock::now();
  const Time duration = Nanoseconds(impl_->ended - start);
  std::vector<DeviceStep> steps;
  for (size_t d = 0; d < impl_->devices.size(); ++d) {
    steps.push_back(impl_->backends[d]->Results(step));
    steps.back().spans = impl_->issuer->SpansOf(d);
  }
  StepResult result = JoinDevices(impl_->plan, steps, duration);
  result.gradient_norm = impl_->issuer->norm();
  return result;
}

bool VirtualRanks::BeginAhead(int step) { return impl_->issuer->BeginAhead(step); }

const std::vector<Device>& VirtualRanks::devices() const { return impl_->devices; }

GpuBackend& VirtualRanks::At(Device device) {
  return *impl_->backends[DeviceNumber(impl_->plan, device)];
}

const SmBudget& VirtualRanks::budget() const { return impl_->budget; }

StateCopies* VirtualRanks::NewCopies() {
  GpuStateCopies& copies = impl_->copies.emplace_back(impl_->gpu);
  impl_->issuer->HoldUpdates(copies.copied());
  return &copies;
}

GpuRun::GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, GpuRunOptions options)
    : ranks_(
          CheckGpuPlan(plan, model), gpu, options, [&](Device device, gpu::Stream setup, int sms) {
            // All devices have the same products on as many SMs.
            if (!options.matmul_choices.empty() && choices_.empty()) {
              choices_ =
                  ChooseMatmuls(options.matmul_choices, ProductsOf(plan, model), gpu, setup, sms);
            }
            return std::make_unique<GpuDevice>(plan, model, dataset, seed, device, gpu, setup, sms,
                                               choices_);
          }) {}

StageHolder& GpuRun::At(Device device) { return static_cast<GpuDevice&>(ranks_.At(device)); }

GpuCustomRun::GpuCustomRun(const CustomStages& stages, Gpu& gpu, const GpuRunOptions& options,
                           const SmBudget* beside)
    : plan_(WithLanes(stages.plan())),
      gpu_(gpu),
      ranks_(
          plan_, gpu, options,
          [&](Device device, gpu::Stream setup, int sms) {
            return std::make_unique<GpuCustomDevice>(stages, device, gpu, setup, sms);
          },
          beside),
      reader_(gpu) {}

std::unique_ptr<CustomTraining> GpuCustomRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<GpuCustomRun>(stages, gpu_, ComparisonRunOptions(), &ranks_.budget());
}

CustomDevice& GpuCustomRun::At(Device device) {
  return static_cast<GpuCustomDevice&>(ranks_.At(device)).device();
}

}  // namespace contraflow
