#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace contraflow {

/// Attention of every layer. Widths are per head. With latents (DeepSeek's MLA) queries and keys
/// are `head_dim` = without position + `rope_dim` wide, and come from latents of `q_latent` (0:
/// from the layer's input) and `kv_latent`; `kv_heads` is then `heads`.
struct AttentionDims {
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0;   ///< of queries and keys
  int64_t value_dim = 0;  ///< of values
  int64_t q_latent = 0;   ///< with kv_latent only
  int64_t kv_latent = 0;  ///< 0: no latents
  int64_t rope_dim = 0;   ///< with kv_latent: the part of head_dim that all heads share
  bool qkv_bias = false;  ///< of what makes q, k and v (of the latents, where there are some)
  bool out_bias = false;
  bool head_norms = false;  ///< of each query and key, weights of head_dim each
  bool sinks = false;       ///< one learned logit a head

  bool latents() const { return kv_latent > 0; }
};

/// Experts of the layers that have some; every expert is a gated MLP.
struct MoeDims {
  int64_t experts = 0, top_k = 0, width = 0;
  int64_t shared_width = 0;  ///< of the expert that all tokens visit; 0: none
  bool shared_gate = false;  ///< its output has a gate of its own
  int64_t groups = 1;        ///< experts of a token are from at most `top_groups` of these
  int64_t top_groups = 1;
  bool router_bias = false;  ///< one for each expert
  bool expert_bias = false;  ///< of both matrices of each expert
};

struct BlockShape {
  int64_t window = 0;  ///< keys that a query sees at most; 0: all before it
  bool moe = false;

  bool operator==(const BlockShape&) const = default;
};

/// A decoder-only transformer with gated MLPs and RMS norms.
struct ModelShape {
  std::string model_type;             ///< as its config.json says
  std::vector<std::string> defaults;  ///< "head_dim 256": what that leaves out, with its default
  std::string unread;  ///< "index_topk, vision_config": keys with sizes that no cost heeds, or ""
  int64_t hidden = 0, vocabulary = 0;
  AttentionDims attention;
  int64_t dense_width = 0;  ///< of the MLP of layers without experts
  bool mlp_bias = false;
  MoeDims moe;
  int64_t norms = 2;  ///< of a layer; 4: also of what attention and MLP put out
  std::vector<BlockShape> layers;
  bool tied = false;        ///< embedding and head are one matrix
  int64_t predictions = 0;  ///< modules that predict further tokens, a layer each
};

}  // namespace contraflow
