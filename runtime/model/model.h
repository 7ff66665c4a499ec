#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {

inline constexpr double kLeastCapacity = 0.01, kMostCapacity = 64, kMostClip = 65536;

/// A decoder-only MoE language model over bytes, and how it is trained. Per layer: RMSNorm, causal
/// multi-head attention, residual; RMSNorm, router (softmax over all experts, top-k, ties to the
/// lower index), experts with SwiGLU, weighted combine, residual. Byte embedding before the first
/// layer; final RMSNorm, head and cross-entropy after the last.
struct Model {
  std::string name = "default";
  int layers = 0;  ///< 0: 8, or one for each stage where there are more stages
  int width = 64;  ///< d
  int heads = 4;   ///< divides width
  int experts = 8;
  int top_k = 2;           ///< experts a token visits, 1..experts
  int expert_width = 128;  ///< inner width of an expert
  /// 0: every token is served. Else an expert takes at most this many times its even share of the
  /// tokens of a device, first come first served, and the others are dropped.
  float capacity_factor = 0;
  int vocabulary = 256;  ///< bytes
  int sequence = 64;     ///< tokens of one sequence
  int batch = 4;         ///< sequences of one micro-batch
  float learning_rate = 3e-3f;
  int warmup_steps = 10;  ///< linear, from learning_rate / warmup_steps
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float weight_decay = 0.01f;  ///< of matrices, the embedding among them; not of the norms' gains
  /// After the warm-up the rate falls by half a cosine to `minimum_learning_rate`, which it has
  /// from this step on; 0: it does not fall.
  int decay_steps = 0;
  float minimum_learning_rate = 0;
  float clip = 0;  ///< most that the norm of all gradients together may be; 0: no limit
  /// Weight of the load-balancing loss of each layer (RouterBalance, kernels/host/routing.h), whose
  /// gradient is added; the loss that is reported is without it.
  float balance_loss = 0;
  bool renormalise_top_k = false;  ///< a token's weights of its experts sum to 1
  /// Layers of each stage, for plans of this many stages; empty: LayersOfStage. Not of a model
  /// file.
  Partition partition = {};

  bool operator==(const Model&) const = default;
  int tokens() const { return sequence * batch; }
};

/// A preset's name ("default", "tiny"), or a JSON file with the fields above (all optional, unknown
/// ones refused). Throws Error with the JSON path and the remedy.
Model ReadModel(const std::string& preset_or_path);

/// Throws Error, beginning with `place` and the JSON path of the field, if a field is out of range
/// or some do not fit each other.
void CheckModel(const Model& model, const std::string& place);

/// The model with `layers` settled for this many stages, of `layers` layers each unless that is 0,
/// and expert groups of this many members. Throws Error if they do not fit the model: a stage would
/// have no layer, or not as many as it must have, or the members not as many experts each.
Model SettleModel(Model model, int stages, int layers = 0, int members = 1);
/// Like SettleModel, for the host, which has all of the model in one memory. Throws Error, too, if
/// it would need absurd amounts of that. (For GPUs: FitGpuModel, runtime/model/gpu_views.h.)
Model FitModel(Model model, int stages, int layers = 0, int members = 1);

/// The model with the layers that a plan of components has, where its stages have unlike numbers of
/// them (Model::partition). Throws Error if the model has another number.
Model WithLayersOf(const Plan& plan, Model model);
/// FitModel for the stages of a plan, unlike or not.
Model FitModel(Model model, const Plan& plan);

/// The layers of a fitted model in each stage of a plan that says how many layers its stages were
/// made of: those of the model, or these with the embedding before and the head after them, as
/// costs list them. Empty, as for LayersOfStage, if the plan does not say so or is about other
/// layers. Throws Error, with the remedy, if a stage would have the embedding or the head alone.
Partition PartitionOf(const Model& model, const Partition& planned);

/// Learning rate of the optimizer in a step; steps count from 1.
double LearningRate(const Model& model, int step);

/// Most rows that one device sends to one expert for a micro-batch; 0: no limit.
int64_t Capacity(const Model& model);
/// Most rows that `local_experts` experts get of all `members` devices together.
int64_t MostExpertRows(const Model& model, int members, int local_experts);

/// Layers [first, last) of a stage: as the model's partition says or, without one for this many
/// stages, as even as possible; then earlier stages get the remainder.
struct LayerRange {
  int first, last;
};
LayerRange LayersOfStage(const Model& model, int stage, int stages);
/// How many layers each stage has.
std::vector<int> LayersOfStages(const Model& model, int stages);

}  // namespace contraflow
