#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/gpu/run.h"
#include "runtime/host/run.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// The training of a plan without a pipeline (SerialPlan), on one GPU: every run of the plan on
/// GPUs must equal it, bit for bit, where matrix products are chosen for the same number of SMs.
class GpuSerialRun : public Run {
 public:
  /// Like GpuRun, on the GPU of a run with this budget (VirtualRanks), with its choices. All
  /// arguments but the budget must outlive it.
  GpuSerialRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, const SmBudget& shared_budget, const MatmulChoices& choices = {});

  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return ranks_.devices(); }
  StageHolder& At(Device device) override;
  /// The experts that the tokens of a micro-batch (MicrobatchPlace) visited in a layer of the model
  /// in the last step, [T x k], on the host.
  const int32_t* ChoiceAt(int layer, size_t place);
  /// Norm of all gradients in the last step, before it was limited; 0 where it is not.
  double norm() const { return norm_; }

 private:
  const Model model_;
  const Plan plan_;  // the serial one
  VirtualRanks ranks_;
  double norm_ = 0;
};

}  // namespace contraflow
