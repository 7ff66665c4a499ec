#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tools/profile/config_reader.h"
#include "tools/profile/model_shape.h"

namespace contraflow {

/// How a layer mixes tokens.
enum class Mixer : uint8_t { kFull, kSliding, kChunked, kLinear };

/// A row of the table: words that no config.json of these models has. Keys that mean the same in
/// all families are read in one way (model_reader.cc), and need no word here.
struct Family {
  std::string_view types;  ///< "model_type"s, apart by spaces
  bool tied = false;       ///< without a key "tie_word_embeddings"

  // Attention.
  bool latents = false;  ///< from latents (MLA)
  bool bias = false;     ///< of q, k and v, without a key
  bool out_bias = true;  ///< where those have one, the output has, too
  HeadNorms head_norms = HeadNorms::kNone;
  const char* head_norms_key = nullptr;  ///< a flag that says whether there are some
  bool sinks = false, gated = false;

  // Layers.
  bool own_layers = false;        ///< `finish` says which layer is of what kind
  Mixer other = Mixer::kSliding;  ///< of the layers that do not have full attention
  const char* period_key = nullptr;
  int64_t period = 0;  ///< without that key: each n-th layer is full; 0: all are
  /// Used if neither key is there: true if layer i is of the other kind.
  bool (*is_other)(const ConfigReader& config, int64_t i) = nullptr;
  int64_t norms = 2;  ///< as LayerShape
  bool norm_bias = false, plain_mlp = false, mlp_bias = false;
  bool mlp = true;  ///< else mixers alone
  LinearDims (*linear)(const ConfigReader& config, const ModelShape& model) = nullptr;

  // Experts.
  bool experts = false;
  bool whole_width = false;  ///< each expert is as wide as "intermediate_size" says
  bool shared_gate = false, router_bias = false, expert_bias = false;

  std::span<const ConfigDefault> defaults = {};  ///< for keys that published configs leave out
  /// All that is this family's alone.
  void (*finish)(const ConfigReader& config, ModelShape* model) = nullptr;
};

std::span<const Family> Families();

/// Reads the layers of a model of this family. Throws Error with the JSON path.
ModelShape ReadModel(const ConfigReader& config, const Family& family);

// Parts of the rows of the table.

AttentionDims ReadAttention(const ConfigReader& config, const Family& family, int64_t hidden);
MoeDims ReadExperts(const ConfigReader& config, const Family& family);
/// With the names that most have: "mamba_n_heads" and the like.
LinearDims ReadMamba2(const ConfigReader& config, const ModelShape& model);
LinearDims ReadMamba(const ConfigReader& config, const ModelShape& model);
LinearDims ReadDeltaNet(const ConfigReader& config, const ModelShape& model);
LinearDims ReadKda(const ConfigReader& config, const ModelShape& model);
LinearDims ReadShortConv(const ConfigReader& config, const ModelShape& model);
/// Layers by a pattern of letters, each a mixer or an MLP alone: M Mamba, G gated delta net,
/// * attention, - MLP, E experts; | between stages; / before each prediction module.
void ReadPattern(const ConfigReader& config, ModelShape* model);

}  // namespace contraflow
