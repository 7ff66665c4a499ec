#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/host/stage.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// As ReferenceRun, on a GPU: the same training without a pipeline, one micro-batch after the
/// other, one kernel after the other. What a plan's execution on GPUs must equal, bit for bit,
/// wherever matrix products are chosen for the same number of SMs. Sums are taken in the same
/// order: over the micro-batches of each copy of a stage as the plan has them (SerialOrder), then
/// over the copies, replica by replica, member by member and in route order. The members' tokens go
/// through everything one member after the other, but the experts work on all of their rows at
/// once.
class GpuSerialRun {
 public:
  /// The plan is sound (Verify). What is passed must outlive it. Throws Error if the model does not
  /// fit the plan or a GPU.
  GpuSerialRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
               Gpu& gpu, gpu::Stream stream, int compute_sms, const MatmulChoices& choices = {});
  ~GpuSerialRun();

  /// One step; steps count from 1. Returns the losses, [replica][member][micro-batch].
  std::vector<float> Step(int step);

  /// The experts that the tokens of a micro-batch (MicrobatchPlace) visited in a layer of the model
  /// in the last step, [T x k], on the host.
  const int32_t* ChoiceAt(int layer, size_t place) const;

  /// A stage with all of its experts, with the gradients and updated parameters of the last step,
  /// on the host. The same object every time.
  Stage& StageAt(int stage);
  /// What was changed in StageAt(stage) since holds from now on.
  void Put(int stage);
  /// (token, expert) pairs of the last step that an expert had no capacity left for.
  int64_t dropped() const;
  /// Of all gradients in the last step, before it was limited; 0 where it is not.
  double norm() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace contraflow
