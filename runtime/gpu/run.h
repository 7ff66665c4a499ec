#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/run.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/links.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// How a GPU run issues its work.
struct GpuRunOptions {
  bool graph = true;   ///< capture the step once and replay it; else issue it anew every time
  bool stamps = true;  ///< measure when each instruction runs; two small kernels an instruction
  int run_ahead =
      256;  ///< without a graph: instructions the host may be ahead in a lane; 2 or more
  /// A GpuHang (runtime/gpu/step_watch.h) where a GPU with all devices makes no progress for so
  /// long: no stamp changes, or, without stamps, a step takes longer. 0: never.
  std::chrono::milliseconds timeout{0};
  int partition_sms = 0;  ///< SMs of each device, a multiple of 8; 0: as many as there are for each
};

/// Trains with a plan on one GPU, which is all of the plan's devices at once: virtual ranks, each
/// in its partition of the SMs, linked by copies.
class GpuRun : public Run {
 public:
  /// The plan is sound (Verify) and of level buffer, compiled for a GPU; the model fitted to its
  /// stages. What is passed must outlive the run. Throws Error with the remedy if the plan, the
  /// model or the GPU do not suit.
  GpuRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed, Gpu& gpu,
         GpuRunOptions options = {});
  ~GpuRun() override;

  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override;
  StageHolder& At(Device device) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace contraflow
