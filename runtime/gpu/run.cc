#include "runtime/gpu/run.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/serial_run.h"

namespace contraflow {
namespace {

SmBudget BudgetFor(const Plan& plan, const Gpu& gpu, int partition_sms,
                   const SmBudget* shared_budget) {
  if (shared_budget == nullptr) {
    // More than any GPU has SMs is as wrong as any such number.
    constexpr size_t kTooMany = 1 << 20;
    return BudgetOf(gpu.sms(), static_cast<int>(std::min(DeviceCount(plan), kTooMany)), UseOf(plan),
                    partition_sms);
  }
  SmBudget budget = *shared_budget;
  budget.partitions = 1;
  budget.link_ctas = std::max(budget.link_ctas, 1);
  return budget;
}

}  // namespace

GpuDevices::GpuDevices(const Plan& plan, Gpu& gpu, const SmBudget& budget, bool divide,
                       std::vector<Device> devices, const MakeGpuBackend& make)
    : plan_(plan), gpu_(gpu), budget_(budget), devices_(std::move(devices)) {
  if (divide) gpu.Partition(budget.partitions, budget.sms);
  for (int d = 0; d < std::ssize(devices_); ++d) {
    const int partition = std::min(d, budget.partitions - 1);
    lanes_.push_back(std::make_unique<GpuLanes>(plan, devices_[static_cast<size_t>(d)], gpu,
                                                partition, budget.compute));
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    backends_.push_back(
        make(devices_[d], lanes_[d]->streams()[GpuLanes::kCompute], budget.compute));
  }
}

void GpuDevices::MakeIssuer(const IssueOptions& options) {
  std::vector<IssuedDevice> issued;
  for (size_t d = 0; d < devices_.size(); ++d) {
    issued.push_back({devices_[d], backends_[d].get(), lanes_[d].get()});
  }
  issuer_ = std::make_unique<GpuIssuer>(plan_, std::move(issued), gpu_, *links_, options, [this] {
    for (GpuStateCopies& each : copies_) each.Poll();
    if (watch_ != nullptr) watch_->Look();
  });
}

StepResult GpuDevices::Step(int step) {
  if (watch_ != nullptr) watch_->Begin(step, issuer_->StampsIn(step));
  // A step that was begun ahead runs since the one before it.
  const Clock::time_point start = issuer_->begun_ahead() ? ended_ : Clock::now();
  issuer_->Step(step);
  if (watch_ != nullptr) watch_->End();
  ended_ = Clock::now();
  std::vector<DeviceStep> steps;
  for (size_t d = 0; d < devices_.size(); ++d) {
    steps.push_back(backends_[d]->Results(step));
    steps.back().spans = issuer_->SpansOf(d);
  }
  Gather(&steps);
  StepResult result = JoinDevices(plan_, steps, Nanoseconds(ended_ - start));
  result.gradient_norm = issuer_->norm();
  return result;
}

GpuBackend& GpuDevices::At(Device device) const {
  const auto at = std::ranges::find(devices_, device);
  CF_ASSERT(at != devices_.end());
  return *backends_[static_cast<size_t>(at - devices_.begin())];
}

StateCopies* GpuDevices::NewCopies() {
  GpuStateCopies& copies = copies_.emplace_back(gpu_);
  issuer_->HoldUpdates(copies.copied());
  return &copies;
}

void GpuDevices::Close() {
  issuer_->DropGraphs();
  links_->Close();
}

VirtualRanks::VirtualRanks(const Plan& plan, Gpu& gpu, const GpuRunOptions& options,
                           const MakeGpuBackend& make, const SmBudget* shared_budget)
    : GpuDevices(plan, gpu, BudgetFor(plan, gpu, options.partition_sms, shared_budget),
                 shared_budget == nullptr, AllDevices(plan), make) {
  std::vector<gpu::Stream> streams;
  for (const auto& lanes : lanes_) {
    streams.insert(streams.end(), lanes->streams().begin(), lanes->streams().end());
  }
  links_ = std::make_unique<VirtualLinks>(plan, budget_, gpu, streams);
  MakeIssuer(options);
  if (options.timeout.count() == 0) return;
  std::vector<GpuWatch::Watched> watched;
  for (size_t d = 0; d < devices_.size(); ++d) {
    watched.push_back({devices_[d], issuer_->StampsOf(d)});
  }
  watch_ = std::make_unique<HangWatch>(plan, std::move(watched), gpu, options.timeout);
}

GpuRun::GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, const MakeGpuDevices& make, const Choose& choose,
               const AllocateMemory& arenas)
    : plan_(CheckGpuPlan(plan, model)),
      model_(model),
      dataset_(dataset),
      seed_(seed),
      gpu_(gpu),
      devices_(make(plan, [&](Device device, gpu::Stream setup, int sms) {
        // All devices have the same products on as many SMs.
        if (choices_.empty()) choices_ = choose(setup, sms);
        return std::make_unique<GpuDevice>(plan, model, dataset, seed, device, gpu, setup, sms,
                                           choices_, arenas);
      })) {}

GpuRun::GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, const GpuRunOptions& options)
    : GpuRun(
          plan, model, dataset, seed, gpu,
          [&](const Plan& with, const MakeGpuBackend& make) {
            return std::make_unique<VirtualRanks>(with, gpu, options, make);
          },
          [&](gpu::Stream setup, int sms) {
            const std::string& path = options.matmul_choices;
            return path.empty() ? MatmulChoices()
                                : ChooseMatmuls(path, ProductsOf(plan, model), gpu, setup, sms);
          },
          {}) {}

StageHolder& GpuRun::At(Device device) { return static_cast<GpuDevice&>(devices_->At(device)); }

std::unique_ptr<GpuSerialRun> GpuRun::NewSerialRun() {
  return std::make_unique<GpuSerialRun>(plan_, model_, dataset_, seed_, gpu_, budget(), choices_);
}

GpuCustomRun::GpuCustomRun(const CustomStages& stages, Gpu& gpu, const MakeGpuDevices& make,
                           const AllocateMemory& arenas)
    : plan_(WithLanes(stages.plan())),
      gpu_(gpu),
      devices_(make(plan_, [&](Device device, gpu::Stream setup, int sms) {
        return std::make_unique<GpuCustomDevice>(stages, device, gpu, setup, sms, arenas);
      })) {}

GpuCustomRun::GpuCustomRun(const CustomStages& stages, Gpu& gpu, const GpuRunOptions& options,
                           const SmBudget* shared_budget)
    : GpuCustomRun(stages, gpu,
                   [&](const Plan& plan, const MakeGpuBackend& make) {
                     return std::make_unique<VirtualRanks>(plan, gpu, options, make, shared_budget);
                   },
                   {}) {}

CustomDevice& GpuCustomRun::At(Device device) {
  return static_cast<GpuCustomDevice&>(devices_->At(device)).device();
}

std::span<const std::byte> GpuCustomRun::Read(const void* at, size_t bytes,
                                              std::vector<std::byte>* room) {
  if (!reads_) reads_ = gpu_.NewStream(0, Priority::kNormal, "check");
  room->resize(bytes);
  gpu_.CopyToHost(*reads_, room->data(), at, bytes);
  gpu_.Synchronize();
  return *room;
}

std::unique_ptr<CustomTraining> GpuCustomRun::NewReference(const CustomStages& stages) {
  return std::make_unique<GpuCustomRun>(stages, gpu_, ComparisonRunOptions(), &devices_->budget());
}

}  // namespace contraflow
