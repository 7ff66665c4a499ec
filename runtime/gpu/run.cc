#include "runtime/gpu/run.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/issue_order.h"
#include "runtime/gpu/issuer.h"
#include "runtime/gpu/links.h"
#include "runtime/gpu/step_watch.h"

namespace contraflow {
namespace {

/// The plan, if it says all that a GPU needs.
const Plan& CheckForGpu(const Plan& plan) {
  const std::string remedy = "; compile it with `level` buffer `device` cuda `model` MODEL";
  if (plan.level != Level::kBuffer) {
    throw Error("a plan of level " + std::string(Name(plan.level)) + " does not run on a GPU" +
                remedy);
  }
  if (plan.layers == 0) throw Error("a plan without components does not run on a GPU" + remedy);
  return plan;
}

SmBudget BudgetFor(const Plan& plan, const Gpu& gpu, int partition_sms) {
  const size_t devices = DeviceCount(CheckForGpu(plan));
  // More than any GPU has SMs is as wrong as any such number.
  constexpr size_t kTooMany = 1 << 20;
  return BudgetOf(gpu.sms(), static_cast<int>(std::min(devices, kTooMany)),
                  plan.expert_parallel > 1, partition_sms);
}

}  // namespace

struct GpuRun::Impl {
  Impl(const Plan& the_plan, const Model& model, const Dataset& dataset, uint64_t seed,
       Gpu& the_gpu, const GpuRunOptions& options)
      : plan(the_plan), gpu(the_gpu), budget(BudgetFor(plan, gpu, options.partition_sms)) {
    gpu.Partition(budget.partitions, budget.sms);
    devices = AllDevices(plan);
    std::vector<gpu::Stream> streams;
    for (size_t d = 0; d < devices.size(); ++d) {
      lanes.push_back(
          std::make_unique<GpuLanes>(plan, devices[d], gpu, static_cast<int>(d), budget.compute));
      const std::vector<gpu::Stream>& here = lanes.back()->streams();
      streams.insert(streams.end(), here.begin(), here.end());
    }
    std::vector<IssuedDevice> issued;
    for (size_t d = 0; d < devices.size(); ++d) {
      backends.push_back(std::make_unique<GpuDevice>(plan, model, dataset, seed, devices[d], gpu,
                                                     lanes[d]->streams()[GpuLanes::kCompute],
                                                     budget.compute));
      issued.push_back({devices[d], backends[d].get(), lanes[d].get()});
    }
    links = std::make_unique<VirtualLinks>(plan, budget, gpu, streams);
    std::function<void()> waiting;
    if (options.timeout.count() > 0) waiting = [this] { watch->Look(); };
    issuer = std::make_unique<GpuIssuer>(plan, std::move(issued), gpu, *links, options,
                                         std::move(waiting));
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
  std::vector<std::unique_ptr<GpuLanes>> lanes;      // by device
  std::vector<std::unique_ptr<GpuDevice>> backends;  // by device
  std::unique_ptr<VirtualLinks> links;
  std::unique_ptr<GpuIssuer> issuer;
  std::unique_ptr<HangWatch> watch;  // none without a timeout
};

GpuRun::GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, GpuRunOptions options)
    : impl_(std::make_unique<Impl>(plan, model, dataset, seed, gpu, options)) {}

GpuRun::~GpuRun() = default;

StepResult GpuRun::Step(int step) {
  const Clock::time_point start = Clock::now();
  if (impl_->watch != nullptr) impl_->watch->Begin(step);
  impl_->issuer->Step(step);
  const Time duration = Nanoseconds(Clock::now() - start);
  std::vector<DeviceStep> steps;
  for (size_t d = 0; d < impl_->devices.size(); ++d) {
    steps.push_back(impl_->backends[d]->Results());
    steps.back().spans = impl_->issuer->SpansOf(d);
  }
  return JoinDevices(impl_->plan, steps, duration);
}

const std::vector<Device>& GpuRun::devices() const { return impl_->devices; }

StageHolder& GpuRun::At(Device device) {
  return *impl_->backends[DeviceNumber(impl_->plan, device)];
}

}  // namespace contraflow
