// Keys that mean the same in all families, and what they make of the layers of one.

#include <algorithm>
#include <set>
#include <string>

#include "compiler/plan/text.h"
#include "tools/profile/family.h"

namespace contraflow {
namespace {

constexpr Keys kExperts = {"num_experts", "num_local_experts", "n_routed_experts",
                           "moe_num_experts"};
constexpr Keys kTopK = {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"};
constexpr Keys kShared = {"n_shared_experts", "num_shared_experts", "num_shared_expert",
                          "moe_num_shared_experts"};
constexpr Keys kSharedWidth = {"shared_expert_intermediate_size",
                               "moe_shared_expert_intermediate_size", "shared_intermediate_size"};
constexpr Keys kPredictions = {"num_nextn_predict_layers", "mtp_num_hidden_layers",
                               "num_mtp_modules"};
constexpr Keys kDense = {"intermediate_size", "block_ff_dim"};

/// DeepSeek's latents (arXiv 2405.04434, section 2.1).
AttentionDims LatentAttention(const ConfigReader& config) {
  AttentionDims attention;
  // Copies of what the latents give.
  config.Ignore({"num_key_value_heads", "head_dim"});
  attention.heads = attention.kv_heads = config.Count({"num_attention_heads"}, kMaxHeads);
  const int64_t plain = config.Count({"qk_nope_head_dim"}, kMaxWidth);
  const int64_t both = config.CountOr({"qk_head_dim"}, 2 * kMaxWidth, 0, plain + 1);
  attention.rope_dim = both > 0 && !config.Given("qk_rope_head_dim")
                           ? both - plain
                           : config.Count({"qk_rope_head_dim"}, kMaxWidth);
  attention.head_dim = attention.rope_dim + plain;
  attention.value_dim = config.Count({"v_head_dim"}, kMaxWidth);
  attention.q_latent = config.CountOr({"q_lora_rank"}, kMaxWidth, 0);
  attention.kv_latent = config.Count({"kv_lora_rank"}, kMaxWidth);
  return attention;
}

AttentionDims GroupedAttention(const ConfigReader& config, int64_t hidden) {
  AttentionDims attention;
  attention.heads = config.Count({"num_attention_heads"}, kMaxHeads);
  attention.kv_heads = config.CountOr({"num_key_value_heads"}, kMaxHeads, attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.Required("num_key_value_heads")
        .Fail("must divide \"num_attention_heads\", " + std::to_string(attention.heads) + ", is " +
              std::to_string(attention.kv_heads));
  }
  attention.head_dim = config.CountOr({"head_dim", "attention_head_dim"}, kMaxWidth, 0);
  if (attention.head_dim == 0) {
    if (hidden % attention.heads != 0) {
      config.Required("num_attention_heads")
          .Fail("must divide \"hidden_size\", " + std::to_string(hidden) +
                ", where there is no \"head_dim\", is " + std::to_string(attention.heads));
    }
    attention.head_dim = hidden / attention.heads;
  }
  attention.value_dim = config.CountOr({"v_head_dim"}, kMaxWidth, attention.head_dim);
  return attention;
}

std::string_view NameOf(Mixer mixer) {
  constexpr std::string_view kNames[] = {"full_attention", "sliding_attention", "chunked_attention",
                                         "linear_attention"};
  return kNames[static_cast<size_t>(mixer)];
}

/// The kind of layer i by "layer_types".
Mixer TypedMixer(const JsonCursor& item, Mixer other) {
  const std::string& type = item.String("the kind of a layer");
  for (const std::string_view full : {"full_attention", "indexed_attention", "attention"}) {
    if (type == full) return Mixer::kFull;
  }
  if (type == NameOf(other)) return other;
  if (other == Mixer::kLinear && (type == "mamba" || type == "conv")) return other;
  item.Fail("must be \"full_attention\" or \"" + std::string(NameOf(other)) + "\", is " +
            Excerpt(type));
}

std::vector<Mixer> MixersOf(const ConfigReader& config, const Family& family, size_t layers) {
  std::vector<Mixer> mixers(layers, Mixer::kFull);
  if (family.own_layers) return mixers;
  auto types = config.Given("layer_types");
  if (!types) types = config.Given("layers_block_type");
  if (types && types->Size("a list with the kind of each layer") != layers) {
    types->Fail("must have \"num_hidden_layers\", " + std::to_string(layers) + ", entries, has " +
                std::to_string(types->Size("")));
  }
  const int64_t period = family.period_key != nullptr
                             ? config.CountOr({family.period_key}, kMostLayers, family.period)
                             : family.period;
  for (size_t i = 0; i < layers; ++i) {
    const auto at = static_cast<int64_t>(i);
    if (types) {
      mixers[i] = TypedMixer(types->Item(i), family.other);
      continue;
    }
    const bool is_other = family.is_other != nullptr ? family.is_other(config, at)
                                                     : period > 0 && (at + 1) % period != 0;
    if (is_other) mixers[i] = family.other;
  }
  return mixers;
}

/// Which layers have experts.
std::vector<bool> SparseLayers(const ConfigReader& config, size_t layers) {
  const auto count = static_cast<int64_t>(layers);
  const int64_t dense = config.CountOr({"first_k_dense_replace", "num_dense_layers"}, count, 0, 0);
  // The last of every n, or the first.
  const int64_t step =
      config.CountOr({"decoder_sparse_step", "interleave_moe_layer_step"}, kMostLayers, 1);
  const auto list = config.Given("moe_layer_freq");
  const bool is_list = list && list->IsArray();
  int64_t period = 1, offset = 0;
  if (list && !is_list) period = list->Integer("a whole number", 1, kMostLayers);
  if (config.Given("expert_layer_period")) {
    period = config.Count({"expert_layer_period"}, kMostLayers);
    offset = config.CountOr({"expert_layer_offset"}, period - 1, 1 % period, 0);
  }
  const int64_t first = config.CountOr({"moe_layer_start_index"}, count, 0, 0);
  const int64_t interval = config.CountOr({"moe_layer_interval"}, kMostLayers, 1);
  int64_t last = config.CountOr({"moe_layer_end_index"}, count, count, -1);
  if (last < 0) last = count;
  const auto types = config.Given("mlp_layer_types");
  std::vector<bool> sparse(layers);
  for (size_t i = 0; i < layers; ++i) {
    const auto at = static_cast<int64_t>(i);
    sparse[i] = at >= dense && (at + 1) % step == 0 && at % period == offset && at >= first &&
                at <= last && (at + 1) % interval == 0;
    if (is_list && i < list->Size("")) sparse[i] = list->Item(i).Integer("0 or 1", 0, 1) == 1;
    if (types && i < types->Size("a list with \"dense\" or \"sparse\" for each layer")) {
      sparse[i] = types->Item(i).String("\"dense\" or \"sparse\"") != "dense";
    }
  }
  if (const auto moe = config.Given("moe_layers")) {
    sparse.assign(layers, false);
    for (const int i : moe->Integers("a layer", 0, static_cast<int>(count) - 1, layers)) {
      sparse[static_cast<size_t>(i)] = true;
    }
  }
  if (const auto only = config.Given("mlp_only_layers")) {
    for (const int i : only->Integers("a layer", 0, static_cast<int>(count) - 1, layers)) {
      sparse[static_cast<size_t>(i)] = false;
    }
  }
  return sparse;
}

/// Width, vocabulary, layers without parts.
ModelShape Trunk(const ConfigReader& config, const Family& family) {
  ModelShape model;
  model.hidden = config.Count({"hidden_size"}, kMaxWidth);
  model.vocabulary = config.Count({"vocab_size"}, kMaxVocabulary);
  const auto list = config.Given("layers_block_type");
  int64_t layers = 0;
  if (list && !config.Given("num_hidden_layers")) {
    layers = static_cast<int64_t>(list->Size("a list with the kind of each layer"));
    if (layers < 1 || layers > kMostLayers) {
      list->Fail("must have 1.." + std::to_string(kMostLayers) + " entries, has " +
                 std::to_string(layers));
    }
  } else {
    layers = config.Count({"num_hidden_layers"}, kMostLayers);
  }
  model.layers.resize(static_cast<size_t>(layers));
  model.tied = config.FlagOr({"tie_word_embeddings"}, family.tied);
  model.norm_bias = family.norm_bias;
  return model;
}

}  // namespace

AttentionDims ReadAttention(const ConfigReader& config, const Family& family, int64_t hidden) {
  AttentionDims a = family.latents ? LatentAttention(config) : GroupedAttention(config, hidden);
  a.qkv_bias = config.FlagOr({"attention_bias", "use_qkv_bias", "use_bias"}, family.bias);
  a.out_bias = config.FlagOr({"attention_out_bias"}, a.qkv_bias && family.out_bias);
  a.head_norms = family.head_norms;
  if (family.head_norms_key != nullptr) {
    const bool some = config.FlagOr({family.head_norms_key}, family.head_norms != HeadNorms::kNone);
    if (!some) a.head_norms = HeadNorms::kNone;
    if (some && a.head_norms == HeadNorms::kNone) a.head_norms = HeadNorms::kEach;
  }
  a.sinks = family.sinks;
  a.gated = config.FlagOr({"attn_output_gate"}, family.gated);
  if (family.latents && config.Given("index_topk")) {
    a.indexer = {.heads = config.Count({"index_n_heads"}, kMaxHeads),
                 .head_dim = config.Count({"index_head_dim"}, kMaxWidth),
                 .top_k = config.Count({"index_topk"}, kMaxWindow)};
  }
  return a;
}

MoeDims ReadExperts(const ConfigReader& config, const Family& family) {
  MoeDims moe;
  moe.experts = config.Count(kExperts, kMaxExperts, 2);
  moe.top_k = config.Count(kTopK, moe.experts);
  const bool own = config.Given("moe_intermediate_size") || !family.whole_width;
  moe.width = config.Count({own ? "moe_intermediate_size" : "intermediate_size"}, kMaxWidth);
  moe.shared_width =
      config.CountOr(kSharedWidth, kMaxWidth, config.CountOr(kShared, 64, 0, 0) * moe.width, 0);
  moe.latent = config.CountOr({"moe_latent_size"}, kMaxWidth, 0);
  moe.shared_gate = family.shared_gate;
  moe.router_bias = family.router_bias;
  moe.expert_bias = family.expert_bias;
  moe.groups = config.CountOr({"n_group", "num_expert_group"}, moe.experts, 1);
  moe.top_groups = config.CountOr({"topk_group"}, moe.groups, moe.groups);
  return moe;
}

ModelShape ReadModel(const ConfigReader& config, const Family& family) {
  ModelShape model = Trunk(config, family);
  const size_t layers = model.layers.size();
  const bool attends =
      family.is_other == nullptr || family.linear == nullptr || config.Given("num_attention_heads");
  AttentionDims attention;
  if (attends) attention = ReadAttention(config, family, model.hidden);
  const std::vector<Mixer> mixers = MixersOf(config, family, layers);
  // A hybrid family may have members without experts.
  const bool experts = family.experts && config.CountOr(kExperts, kMaxExperts, 1, 0) > 0;
  const std::vector<bool> sparse =
      experts ? SparseLayers(config, layers) : std::vector<bool>(layers, false);
  LayerShape any;
  any.norms = family.norms;
  any.gated_mlp = !family.plain_mlp;
  any.mlp_bias = config.FlagOr({"mlp_bias", "use_bias"}, family.mlp_bias);
  const int64_t own = config.CountOr({"intermediate_size_mlp"}, kMaxWidth, 0);
  const int64_t shared =
      family.experts && !experts ? config.CountOr(kSharedWidth, kMaxWidth, 0) : 0;
  config.Ignore(kDense);
  if (family.mlp && !std::ranges::all_of(sparse, [](bool each) { return each; })) {
    any.dense_width = own > 0 ? own : shared > 0 ? shared : config.Count(kDense, kMaxWidth);
  }
  MoeDims moe;
  if (experts) moe = ReadExperts(config, family);
  for (size_t i = 0; i < layers; ++i) {
    LayerShape& layer = model.layers[i];
    layer = any;
    if (mixers[i] == Mixer::kLinear) {
      layer.linear = family.linear(config, model);
    } else {
      layer.attention = attention;
    }
    if (mixers[i] == Mixer::kSliding) {
      layer.attention.window = config.Count({"sliding_window"}, kMaxWindow);
    }
    if (mixers[i] == Mixer::kChunked) {
      layer.attention.chunk = config.Count({"attention_chunk_size"}, kMaxWindow);
    }
    if (!sparse[i]) continue;
    layer.dense_width = 0;
    layer.moe = moe;
  }
  if (config.FlagOr({"use_mtp"}, true)) model.predictions = config.CountOr(kPredictions, 16, 0, 0);
  model.prediction = model.layers.back();
  if (config.FlagOr({"lm_head_bias"}, false)) model.scales += model.vocabulary;
  if (family.finish != nullptr) family.finish(config, &model);
  return model;
}

}  // namespace contraflow
