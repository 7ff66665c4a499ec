#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/plan/cost.h"
#include "tools/profile/gpus.h"
#include "tools/profile/model_shape.h"

namespace contraflow {

/// Kinds of work; each has one efficiency, the share of what the GPU can do at best:
///
///     matmul           projections and dense MLPs; share of the FLOP/s of its type
///     experts          the grouped matmuls of a device's experts
///     attention        queries by keys by values, always bf16; 2.5 times the work backward
///     head             the matmul with the vocabulary, always bf16
///     memory           norms, activation functions, casts, loss; share of the HBM bytes/s
///     all-to-all       dispatch and combine; share of the NVLink or network bytes/s
///     tensor-parallel  gathering and scattering the tokens of a tensor-parallel group; the same
///     p2p              a message between stages; share of the network bytes/s
enum class WorkKind : uint8_t {
  kMatmul,
  kExperts,
  kAttention,
  kHead,
  kMemory,
  kAllToAll,
  kTensorParallel,
  kP2p
};
inline constexpr size_t kWorkKinds = 8;
std::string_view Name(WorkKind kind);

using Efficiencies = std::array<double, kWorkKinds>;  ///< by WorkKind

/// Assumptions where the user says nothing. Those of bf16 are what large matmuls reach in training;
/// with those of fp8 matmuls a dense layer is 1.3 to 1.45 times as fast, as is published. Experts
/// in fp8, memory and all-to-all are fitted to DeepSeek's training trace (tests/tools/profile),
/// where matmuls reach 0.35 and attention 0.34 beside communication.
Efficiencies DefaultEfficiencies(bool fp8);

/// Puts "KIND=X,..." over them. Throws Error for a kind that there is none of, and a share that is
/// not above 0 and at most 1.
void ParseEfficiencies(std::string_view text, Efficiencies* efficiencies);

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

  int64_t tokens() const { return sequence * micro_batch; }
  Parallel parallel() const {
    return {.tp = static_cast<int>(tensor_parallel),
            .ep = static_cast<int>(expert_parallel),
            .etp = static_cast<int>(expert_tensor)};
  }
  /// True if all devices that exchange rows of experts are in one node.
  bool experts_in_node() const { return expert_parallel * expert_tensor <= gpu->node; }
  double of(WorkKind kind) const { return efficiency[static_cast<size_t>(kind)]; }
};

/// Throws Error, with the fields in backticks, if the GPU has no fp8, or the model cannot be split
/// like this.
void CheckSetup(const CostSetup& setup, const ModelShape& model);

}  // namespace contraflow
