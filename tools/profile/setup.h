#pragma once

#include <cstddef>
#include <cstdint>

#include "compiler/plan/cost.h"
#include "tools/profile/efficiency.h"
#include "tools/profile/gpus.h"
#include "tools/profile/model_shape.h"

namespace contraflow {

/// Efficiencies of a GPU where the user says nothing: its own, else those of any.
Efficiencies EfficienciesOf(const GpuSheet& gpu, bool fp8);

/// Training setup of a model, and how it is split.
struct CostSetup {
  const GpuSheet* gpu = nullptr;
  int64_t tensor_parallel = 1;  ///< GPUs that split each matrix, and the tokens in between
  int64_t expert_parallel = 1;  ///< groups of devices that split the experts
  int64_t expert_tensor = 1;    ///< GPUs that split each expert
  int64_t sequence = 4096;      ///< tokens of a sequence
  int64_t micro_batch = 1;      ///< sequences of a micro-batch
  bool fp8 = false;             ///< matmuls but the router and the head; else bf16
  Efficiencies efficiency = DefaultEfficiencies(false);
  /// Wait of a rank for the last of its expert group before each all-to-all, as a share of the
  /// compute time (f, b and w) of a layer.
  double wait = 0.1;
  /// Messages of tp run beside the matmuls that they feed, but for one part of tp.
  bool tp_overlap = false;
  /// GPUs of the whole run, and those that hold one stage or a copy of it; 0: many nodes of them.
  int64_t gpus = 0, stage_gpus = 0;

  int64_t tokens() const { return sequence * micro_batch; }
  Parallel parallel() const {
    return {.tp = static_cast<int>(tensor_parallel),
            .ep = static_cast<int>(expert_parallel),
            .etp = static_cast<int>(expert_tensor)};
  }
  /// True if all devices that exchange rows of experts are in one node.
  bool experts_in_node() const { return expert_parallel * expert_tensor <= gpu->node; }
  /// True if messages between stages, and sums over copies, stay in a node.
  bool messages_in_node() const { return gpus > 0 && gpus <= gpu->node; }
  bool sums_in_node() const { return stage_gpus > 0 && stage_gpus <= gpu->node; }
  double of(WorkKind kind) const { return efficiency[static_cast<size_t>(kind)]; }
};

/// Throws Error, with the fields in backticks, if the GPU has no fp8, or the model cannot be split
/// like this.
void CheckSetup(const CostSetup& setup, const ModelShape& model);

}  // namespace contraflow
