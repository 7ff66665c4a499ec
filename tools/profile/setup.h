#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/plan/cost.h"
#include "tools/profile/efficiency.h"
#include "tools/profile/gpus.h"
#include "tools/profile/model_shape.h"

namespace contraflow {

/// Efficiencies of a GPU where the user says nothing: its own, else those of any.
Efficiencies EfficienciesOf(const GpuSheet& gpu, bool fp8);

/// Optimizer, by the bytes that it keeps for each parameter.
struct OptimizerSheet {
  std::string_view name;
  int64_t of_matrices;  ///< bytes for a parameter of a matrix of a layer
  int64_t of_others;    ///< bytes for any other: embedding, head, norms, biases
  int64_t gradient;     ///< bytes of a gradient
  bool orthogonal;      ///< updates of matrices are orthogonalized
  std::string_view text;
};

inline constexpr std::array<OptimizerSheet, 5> kOptimizers = {{
    {"adam", 12, 12, 4, false, "fp32 copy and two moments"},
    // DeepSeek-V3, arXiv 2412.19437, section 3.3.3.
    {"adam-bf16", 8, 8, 4, false, "fp32 copy and two moments in bf16"},
    // arXiv 2110.02861.
    {"adam-8bit", 6, 6, 4, false, "fp32 copy and two moments of a byte each"},
    {"adam-all-bf16", 4, 4, 2, false, "two moments in bf16, no other copy"},
    // Moonlight, arXiv 2502.16982, section 2.
    {"muon", 8, 12, 4, true,
     "fp32 copy and a momentum, two moments of all but the layers' matrices"},
}};

/// Returns the optimizer of this name. Throws Error with the known ones.
const OptimizerSheet& FindOptimizer(std::string_view name);

/// Scaling of the operands of fp8 matmuls.
struct Fp8Recipe {
  std::string_view name;
  double scales;       ///< bytes of scales for each value
  double second_cast;  ///< bytes read and written for each value to cast it along the other axis
  std::string_view text;
};

inline constexpr std::array<Fp8Recipe, 3> kFp8Recipes = {{
    {"tensor", 0, 2, "a scale for each tensor"},
    // DeepSeek-V3, arXiv 2412.19437, section 3.3.2.
    {"block", 4.0 / 128, 2, "a scale of 4 bytes for 128 values"},
    // OCP Microscaling Formats, version 1.0. Values along the other axis are cast from bf16.
    {"mx", 1.0 / 32, 3, "a scale of a byte for 32 values"},
}};

/// Returns the recipe of this name. Throws Error with the known ones.
const Fp8Recipe& FindFp8Recipe(std::string_view name);

/// Kernels that say how much a layer keeps for its backward.
enum class Activations : uint8_t {
  kIdeal,     ///< inputs of matmuls and of everything that no kernel makes again
  kMegatron,  ///< as Megatron-LM with Transformer Engine: logits in bf16 and scores in fp32
  kTorch,     ///< as PyTorch without fused kernels: the same, silu(gate), outputs of experts
};
std::string_view Name(Activations activations);  ///< "ideal" "megatron" "torch"
/// Throws Error with these names.
Activations ParseActivations(std::string_view name);

/// Training setup of a model, and how it is split.
struct CostSetup {
  const GpuSheet* gpu = nullptr;
  int64_t tensor_parallel = 1;   ///< GPUs that split each matrix, and the tokens in between
  int64_t context_parallel = 1;  ///< GPUs that split each sequence
  int64_t expert_parallel = 1;   ///< groups of devices that split the experts
  int64_t expert_tensor = 1;     ///< GPUs that split each expert
  int64_t sequence = 4096;       ///< tokens of a sequence
  int64_t micro_batch = 1;       ///< sequences of a micro-batch
  bool fp8 = false;              ///< matmuls but the router and the head; else bf16
  const Fp8Recipe* recipe = &kFp8Recipes[0];  ///< where these are in fp8
  const OptimizerSheet* optimizer = &kOptimizers[0];
  Activations activations = Activations::kIdeal;
  int64_t workspace = 0;  ///< bytes of a device for libraries, communicators and fragments
  Efficiencies efficiency = DefaultEfficiencies(false);
  std::string efficiency_note = {};  ///< for people: what changed them
  /// Wait of a rank for the last of its expert group before each all-to-all, as a share of the
  /// compute time (f, b and w) of a layer.
  double wait = 0.1;
  /// Messages of tp run concurrently with the matmuls that they feed, but for one part of tp.
  bool tp_overlap = false;
  /// A layer's all-to-alls are apart from its f and b, so that a plan may hide them. Without it,
  /// they are part of f and b: for frameworks that wait for each.
  bool components = true;
  /// GPUs of the whole run, and GPUs that hold a stage or a copy of it; 0: many nodes.
  int64_t gpus = 0, stage_gpus = 0;

  /// Tokens of a micro-batch, on all devices that split its sequences.
  int64_t tokens() const { return sequence * micro_batch; }
  Parallel parallel() const {
    return {.tp = static_cast<int>(tensor_parallel),
            .cp = static_cast<int>(context_parallel),
            .ep = static_cast<int>(expert_parallel),
            .etp = static_cast<int>(expert_tensor)};
  }
  /// True if the devices that pass keys and values around are in one node.
  bool sequence_in_node() const { return tensor_parallel * context_parallel <= gpu->node; }
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
