#include "runtime/gpu/serial_run.h"

#include <memory>

#include "runtime/core/devices.h"
#include "runtime/core/serial_plan.h"
#include "runtime/gpu/device.h"
#include "runtime/model/gpu_views.h"

namespace contraflow {

GpuSerialRun::GpuSerialRun(const Plan& plan, const Model& model, const Dataset& dataset,
                           uint64_t seed, Gpu& gpu, const SmBudget& shared_budget,
                           const MatmulChoices& choices)
    : model_(FitGpuModel(model, plan)),
      plan_(SerialPlan(plan)),
      ranks_(
          plan_, gpu, ComparisonRunOptions(),
          [&](Device device, gpu::Stream setup, int sms) {
            auto made = std::make_unique<GpuDevice>(plan_, model_, dataset, seed, device, gpu,
                                                    setup, sms, choices);
            made->KeepChoices();
            return made;
          },
          &shared_budget) {}

StepResult GpuSerialRun::Step(int step) {
  StepResult result = ranks_.Step(step);
  norm_ = result.gradient_norm;
  return result;
}

StageHolder& GpuSerialRun::At(Device device) { return static_cast<GpuDevice&>(ranks_.At(device)); }

const int32_t* GpuSerialRun::ChoiceAt(int layer, size_t place) {
  const int m = static_cast<int>(place) % plan_.microbatches;
  const int group = static_cast<int>(place) / plan_.microbatches;
  int stage = 0;
  while (layer >= LayersOfStage(model_, stage, plan_.stages).last) ++stage;
  const int route = RouteOfMicrobatch(plan_)[static_cast<size_t>(m)];
  const int rank = plan_.routes[static_cast<size_t>(route)].ranks[static_cast<size_t>(stage)];
  const Device device = {group / plan_.expert_parallel, group % plan_.expert_parallel, rank};
  return static_cast<GpuDevice&>(ranks_.At(device))
      .ChoiceAt(stage, layer - LayersOfStage(model_, stage, plan_.stages).first, m);
}

}  // namespace contraflow
