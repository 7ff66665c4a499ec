#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace contraflow {

enum class HeadNorms : uint8_t {
  kNone,
  kEach,  ///< of each query and key, weights of head_dim each
  kWide   ///< of all queries and of all keys at once
};

/// The choice of keys for a query (DeepSeek's lightning indexer): scores of its own heads over
/// all keys, the best `top_k` of which attention looks at.
struct IndexerDims {
  int64_t heads = 0, head_dim = 0, top_k = 0;  ///< heads 0: attention looks at all

  bool operator==(const IndexerDims&) const = default;
};

/// Attention of a layer. Widths are per head. With latents (DeepSeek's MLA) queries and keys
/// are `head_dim` = without position + `rope_dim` wide, and come from latents of `q_latent` (0:
/// from the layer's input) and `kv_latent`; `kv_heads` is then `heads`.
struct AttentionDims {
  int64_t heads = 0, kv_heads = 0;  ///< heads 0: the layer has no attention
  int64_t head_dim = 0;             ///< of queries and keys
  int64_t value_dim = 0;            ///< of values
  int64_t window = 0;               ///< keys that a query sees at most; 0: all before it
  int64_t chunk = 0;                ///< a query sees keys of its own chunk; 0: of all
  int64_t q_latent = 0;             ///< with kv_latent or compress only
  int64_t kv_latent = 0;            ///< 0: no latents
  int64_t rope_dim = 0;             ///< with kv_latent: the part of head_dim that all heads share
  bool qkv_bias = false;  ///< of what makes q, k and v (of the latents, where there are some)
  bool out_bias = false;
  HeadNorms head_norms = HeadNorms::kNone;
  bool sinks = false;            ///< one learned logit a head
  bool gated = false;            ///< its output has a gate as wide, made as the queries are
  bool keys_are_values = false;  ///< one matrix makes both
  bool borrows = false;          ///< keys and values are those of an earlier layer
  bool follows = false;          ///< so is the choice of keys, of an indexer's
  IndexerDims indexer = {};
  /// DeepSeek-V4: one head of keys, which are the values too; those in the window, and beyond it
  /// one for N tokens. The output goes through `out_groups` latents of `out_latent`.
  int64_t compress = 0;  ///< 0: the window alone, where there are out_groups
  int64_t out_groups = 0, out_latent = 0;

  bool latents() const { return kv_latent > 0; }
  bool operator==(const AttentionDims&) const = default;
};

enum class LinearKind : uint8_t { kMamba, kMamba2, kDeltaNet, kKda, kShortConv };

/// Mixer with a state in place of keys: a state-space model, linear attention or a convolution.
/// Heads of `value_dim`, and key heads (groups) of `key_dim`, the state of a channel.
struct LinearDims {
  LinearKind kind = LinearKind::kMamba2;
  int64_t heads = 0, value_dim = 0;  ///< heads 0: the layer has none
  int64_t key_heads = 0, key_dim = 0;
  int64_t kernel = 0;  ///< of the convolution over time
  int64_t rank = 0;    ///< of Mamba's time steps and of KDA's gates
  int64_t chunk = 64;  ///< tokens that are worked on at once
  bool conv_bias = false, bias = false, norm = true;

  int64_t inner() const { return heads * value_dim; }
  int64_t keys() const { return key_heads * key_dim; }
  bool operator==(const LinearDims&) const = default;
};

/// Experts of a layer; an expert has the matrices that a dense MLP has.
struct MoeDims {
  int64_t experts = 0, top_k = 0, width = 0;  ///< experts 0: the layer has none
  int64_t latent = 0;                         ///< that experts see of a token; 0: the layer's width
  int64_t shared_width = 0;                   ///< of the expert that all tokens visit; 0: none
  bool shared_gate = false;                   ///< its output has a gate of its own
  int64_t groups = 1;  ///< experts of a token are from at most `top_groups` of these
  int64_t top_groups = 1;
  bool router_bias = false;  ///< one for each expert
  bool expert_bias = false;  ///< of both matrices of each expert

  bool operator==(const MoeDims&) const = default;
};

/// A layer: attention, a linear mixer or both side by side, then a dense MLP, experts or both. Each
/// may be missing.
struct LayerShape {
  AttentionDims attention = {};
  LinearDims linear = {};
  int64_t dense_width = 0;  ///< of the MLP; 0: none
  MoeDims moe = {};
  bool gated_mlp = true;  ///< gate, up and down; else up and down
  bool mlp_bias = false;
  int64_t norms = 2;  ///< of the layer's width; beyond 2: also of what the halves put out
  int64_t bottleneck =
      0;               ///< matrices from the layer's width to this and back, in addition to the MLP
  int64_t scales = 0;  ///< parameters that no matrix multiplies with

  bool mixes() const { return attention.heads > 0 || linear.heads > 0; }
  bool has_mlp() const { return dense_width > 0 || moe.experts > 0; }
  bool operator==(const LayerShape&) const = default;
};

/// A decoder-only model, as a list of layers.
struct ModelShape {
  std::string model_type;             ///< as its config.json says
  std::vector<std::string> defaults;  ///< "head_dim 256": what that leaves out, with its default
  std::string unread;              ///< "vision_config": keys with sizes that no cost heeds, or ""
  std::vector<std::string> notes;  ///< other parts that these costs leave out
  int64_t hidden = 0, vocabulary = 0;
  std::vector<LayerShape> layers;
  int64_t streams = 1;             ///< of `hidden` that pass from layer to layer
  bool hyper_connections = false;  ///< streams are mixed by weights that they give
  bool norm_bias = false;          ///< norms have weights and a bias
  bool tied = false;               ///< embedding and head are one matrix
  int64_t predictions = 0;         ///< modules that predict further tokens, a layer each
  LayerShape prediction;           ///< that layer
  /// A second table, with a row for each token of `side_vocabulary`, and a matrix as wide.
  int64_t side_vocabulary = 0, side_width = 0;
  int64_t scales = 0;  ///< parameters outside the layers and the rows above

  bool has_experts() const {
    return std::ranges::any_of(layers,
                               [](const LayerShape& layer) { return layer.moe.experts > 0; });
  }
};

}  // namespace contraflow
