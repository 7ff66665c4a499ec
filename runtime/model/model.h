#pragma once

#include <cstdint>
#include <string>

namespace contraflow {

inline constexpr double kLeastCapacity = 0.01, kMostCapacity = 64;

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
  /// 0: every token is served. Else an expert takes at most so many times its even share of the
  /// tokens of a device, first come first served, and the others are dropped.
  float capacity_factor = 0;
  int vocabulary = 256;  ///< bytes
  int sequence = 64;     ///< tokens of one sequence
  int batch = 4;         ///< sequences of one micro-batch
  float learning_rate = 3e-3f;
  int warmup_steps = 10;  ///< linear, from learning_rate / warmup_steps
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.01f;

  bool operator==(const Model&) const = default;
  int tokens() const { return sequence * batch; }
};

/// What is to compute a model: how large it may be there.
enum class Hardware {
  kHost,  ///< all of the model in one memory
  kGpus,  ///< a stage, or a member's part of it, on each
};

/// A preset's name ("default", "tiny"), or a JSON file with the fields above (all optional, unknown
/// ones refused). Throws Error with the JSON path and the remedy. Whether GPUs can hold it depends
/// on the plan, so that is left to FitModel.
Model ReadModel(const std::string& preset_or_path, Hardware on = Hardware::kHost);

/// Throws Error, beginning with `place` and the JSON path of the field, if a size is out of range,
/// the sizes do not fit each other, or the model would need absurd amounts of memory on a device of
/// an expert group of so many members. GPUs hold one of so many stages each.
void CheckModel(const Model& model, const std::string& place, int members = 1, int stages = 1,
                Hardware on = Hardware::kHost);

/// The model with `layers` settled for this many stages, of `layers` layers each unless that is 0,
/// and expert groups of so many members. Throws Error if they do not fit the model: a stage would
/// have no layer, or not as many as it must have, or the members not as many experts each.
Model FitModel(Model model, int stages, int layers = 0, int members = 1,
               Hardware on = Hardware::kHost);

/// Most rows that one device sends to one expert for a micro-batch; 0: no limit.
int64_t Capacity(const Model& model);
/// Most rows that `local_experts` experts get of all `members` devices together.
int64_t MostExpertRows(const Model& model, int members, int local_experts);

/// Layers [first, last) of a stage: as even as possible, earlier stages get the remainder.
struct LayerRange {
  int first, last;
};
LayerRange LayersOfStage(const Model& model, int stage, int stages);

}  // namespace contraflow
