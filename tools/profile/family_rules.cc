#include "tools/profile/family_rules.h"

#include <algorithm>
#include <string>

namespace contraflow {

/// All layers, if there is a window.
bool AllSlide(const ConfigReader& config, int64_t) {
  return config.Given("sliding_window").has_value();
}

/// Qwen's: from "max_window_layers" on, if a switch is on.
bool LateOnesSlide(const ConfigReader& config, int64_t i) {
  config.Ignore({"sliding_window", "max_window_layers"});
  return config.FlagOr({"use_sliding_window"}, false) &&
         i >= config.CountOr({"max_window_layers"}, kMostLayers, 28, 0);
}

bool AllAreOther(const ConfigReader&, int64_t) { return true; }

/// Jamba's: attention in one layer of each period.
bool AllButOneOfPeriod(const ConfigReader& config, int64_t i) {
  const int64_t period = config.CountOr({"attn_layer_period"}, kMostLayers, 8);
  return i % period != config.CountOr({"attn_layer_offset"}, period - 1, 4 % period, 0);
}

/// Attention in the layers that a list names.
bool NotListed(const ConfigReader& config, int64_t i) {
  for (const char* key : {"attn_layer_indices", "full_attn_idxs"}) {
    const auto list = config.Given(key);
    if (!list) continue;
    return !std::ranges::count(list->Integers("a layer", 0, kMostLayers, kMostLayers), i);
  }
  return true;
}

/// Kimi Linear's published configs count layers from 1.
bool NotFullOfKimi(const ConfigReader& config, int64_t i) {
  const auto linear = config.Member("linear_attn_config");
  if (!linear) return true;
  linear->Ignore({"kda_layers"});
  const auto full = linear->Required("full_attn_layers");
  return !std::ranges::count(full.Integers("a layer", 1, kMostLayers, kMostLayers), i + 1);
}

void HeadDimIsRequired(const ConfigReader& config, ModelShape*) { config.Required("head_dim"); }

/// A shared expert and one of many (transformers, Llama4TextMoe).
void Llama4(const ConfigReader&, ModelShape* model) {
  for (LayerShape& layer : model->layers) layer.moe.shared_width = layer.moe.width;
}

/// Two learned figures of its activation.
void Apertus(const ConfigReader&, ModelShape* model) {
  for (LayerShape& layer : model->layers) layer.scales = 2;
}

/// Its MLPs are two thirds as wide as the key says, in whole blocks (transformers, Lfm2MLP).
void Lfm2(const ConfigReader& config, ModelShape* model) {
  config.Ignore({"conv_L_cache", "full_attn_idxs", "block_dim", "num_heads"});
  if (!config.FlagOr({"block_auto_adjust_ff_dim"}, true)) return;
  const int64_t block = config.CountOr({"block_multiple_of"}, kMaxWidth, 256);
  for (LayerShape& layer : model->layers) {
    layer.dense_width = (2 * layer.dense_width / 3 + block - 1) / block * block;
  }
}

/// Attention and Mamba side by side in each layer (arXiv 2507.22448, section 2).
void FalconH1(const ConfigReader& config, ModelShape* model) {
  LinearDims linear = ReadMamba2(config, *model);
  linear.norm = config.FlagOr({"mamba_rms_norm"}, false);
  for (LayerShape& layer : model->layers) layer.linear = linear;
}

/// A norm of time step, B and C each.
void Jamba(const ConfigReader&, ModelShape* model) {
  for (LayerShape& layer : model->layers) {
    if (layer.linear.heads > 0) layer.scales = layer.linear.rank + 2 * layer.linear.key_dim;
  }
}

/// Layers with a window have heads of their own (MiMo).
void MiMo(const ConfigReader& config, ModelShape* model) {
  const AttentionDims& full = model->layers.front().attention;
  const int64_t heads = config.CountOr({"swa_num_attention_heads"}, kMaxHeads, full.heads);
  const int64_t kv = config.CountOr({"swa_num_key_value_heads"}, kMaxHeads, 2 * full.kv_heads);
  const int64_t head_dim = config.CountOr({"swa_head_dim"}, kMaxWidth, full.head_dim);
  const int64_t value_dim = config.CountOr({"swa_v_head_dim"}, kMaxWidth, full.value_dim);
  config.Ignore({"sliding_window_size", "attention_chunk_size"});
  for (LayerShape& layer : model->layers) {
    AttentionDims& a = layer.attention;
    if (a.window == 0) continue;
    a.heads = heads;
    a.kv_heads = kv;
    a.head_dim = head_dim;
    a.value_dim = value_dim;
    a.sinks = true;
  }
}
bool MiMoSlides(const ConfigReader& config, int64_t i) {
  const auto list = config.Required("hybrid_layer_pattern");
  if (static_cast<size_t>(i) >= list.Size("a list with 1 for each layer with a window")) {
    list.Fail("must have \"num_hidden_layers\" entries, has " + std::to_string(list.Size("")));
  }
  return list.Item(static_cast<size_t>(i)).Integer("0 or 1", 0, 1) == 1;
}

/// Every n layers choose keys, and the others take those of the last that did (GLM-5.2).
void SharedIndices(const ConfigReader& config, ModelShape* model) {
  const int64_t step = config.CountOr({"index_topk_freq"}, kMostLayers, 1);
  const int64_t offset = config.CountOr({"index_skip_topk_offset"}, kMostLayers, 2, 0);
  const auto types = config.Given("indexer_types");
  const auto pattern = config.Given("index_topk_pattern");
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    bool shared = std::max<int64_t>(at - offset + 1, 0) % step != 0;
    if (pattern) {
      const std::string& text = pattern->String("a letter for each layer, F or S");
      shared = i < text.size() && text[i] == 'S';
    }
    if (types && i < types->Size("a list with \"full\" or \"shared\" for each layer")) {
      shared = types->Item(i).String("\"full\" or \"shared\"") == "shared";
    }
    if (!shared) continue;
    AttentionDims& a = model->layers[i].attention;
    a.window = a.indexer.top_k;
    a.indexer = {};
    a.follows = true;
  }
}

/// Gemma 3n and 4: a second embedding that each layer reads, layers that take the keys and values
/// of an earlier one, and wider ones among these.
void PerLayerInputs(const ConfigReader& config, ModelShape* model) {
  const auto layers = static_cast<int64_t>(model->layers.size());
  const int64_t width = config.CountOr({"hidden_size_per_layer_input"}, kMaxWidth, 0, 0);
  const int64_t sharing = config.CountOr({"num_kv_shared_layers"}, layers, 0, 0);
  const int64_t vocabulary =
      config.CountOr({"vocab_size_per_layer_input"}, kMaxVocabulary, model->vocabulary);
  if (width > 0) {
    model->side_vocabulary = vocabulary;
    model->side_width = layers * width;
    model->scales += width;
  }
  for (int64_t i = 0; i < layers; ++i) {
    LayerShape& layer = model->layers[static_cast<size_t>(i)];
    layer.attention.borrows = i >= layers - sharing;
    layer.bottleneck += width;
    if (width > 0) layer.scales += model->hidden;  // a norm
  }
}

/// AltUp's streams and LAuReL (transformers, Gemma3nTextModel).
void Gemma3n(const ConfigReader& config, ModelShape* model) {
  PerLayerInputs(config, model);
  config.Ignore({"altup_active_idx"});
  const int64_t streams = config.CountOr({"altup_num_inputs"}, 64, 4);
  const int64_t laurel = config.CountOr({"laurel_rank"}, kMaxWidth, 64);
  const int64_t hidden = model->hidden;
  model->streams = streams;
  model->scales += 2 * (streams - 1) * hidden * hidden;
  for (LayerShape& layer : model->layers) {
    layer.bottleneck += laurel;
    layer.scales += hidden + streams * streams * (1 + streams) + (2 + streams) * hidden;
  }
}

/// Full attention has heads of another width, whose keys are values; MLP and experts are side by
/// side (transformers, Gemma4TextDecoderLayer).
void Gemma4(const ConfigReader& config, ModelShape* model) {
  PerLayerInputs(config, model);
  const AttentionDims& any = model->layers.front().attention;
  const int64_t head_dim = config.CountOr({"global_head_dim"}, kMaxWidth, 512);
  const bool same = config.FlagOr({"attention_k_eq_v"}, false);
  const int64_t global_kv = config.CountOr({"num_global_key_value_heads"}, kMaxHeads, any.kv_heads);
  const bool wide = config.FlagOr({"use_double_wide_mlp"}, false);
  const bool experts = config.FlagOr({"enable_moe_block"}, false);
  MoeDims moe;
  if (experts) {
    moe.experts = config.Count({"num_experts"}, kMaxExperts, 2);
    moe.top_k = config.Count({"top_k_experts"}, moe.experts);
    moe.width = config.Count({"moe_intermediate_size"}, kMaxWidth);
  } else {
    config.Ignore({"num_experts", "top_k_experts", "moe_intermediate_size"});
  }
  for (LayerShape& layer : model->layers) {
    AttentionDims& a = layer.attention;
    if (a.window == 0) {
      a.head_dim = a.value_dim = head_dim;
      a.keys_are_values = same;
      if (same) a.kv_heads = global_kv;
    }
    if (wide && a.borrows) layer.dense_width *= 2;
    layer.moe = moe;
    if (experts) layer.norms = 7;
    if (experts) layer.scales += model->hidden + moe.experts;
  }
}

/// Windows and compressed keys, output by groups, hyper-connections, and layers whose experts are a
/// table's (DeepSeek-V4 report, sections 2.1 to 2.3; transformers, DeepseekV4Attention).
void DeepSeekV4(const ConfigReader& config, ModelShape* model) {
  const auto layers = static_cast<int64_t>(model->layers.size());
  AttentionDims a = model->layers.front().attention;
  config.Ignore({"compress_rates", "hc_sinkhorn_iters", "mlp_layer_types", "topk_method"});
  a.q_latent = config.Count({"q_lora_rank"}, kMaxWidth);
  a.out_groups = config.Count({"o_groups"}, a.heads);
  a.out_latent = config.Count({"o_lora_rank"}, kMaxWidth);
  a.window = config.Count({"sliding_window"}, kMaxWindow);
  const IndexerDims indexer = {.heads = config.Count({"index_n_heads"}, kMaxHeads),
                               .head_dim = config.Count({"index_head_dim"}, kMaxWidth),
                               .top_k = config.Count({"index_topk"}, kMaxWindow)};
  const int64_t tables =
      config.CountOr({"num_hash_layers"}, layers, std::min<int64_t>(3, layers), 0);
  const auto ratios = config.Given("compress_ratios");
  const auto types = config.Given("layer_types");
  for (int64_t i = 0; i < layers; ++i) {
    LayerShape& layer = model->layers[static_cast<size_t>(i)];
    a.compress = i < 2 || i % 2 == 1 ? 128 : 4;
    const auto at = static_cast<size_t>(i);
    if (ratios && at < ratios->Size("a list with the tokens of a key, for each layer")) {
      a.compress = ratios->Item(at).Integer("tokens of a key", 0, kMaxWindow);
    } else if (types && at < types->Size("a list with the kind of each layer")) {
      const std::string& type = types->Item(at).String("the kind of a layer");
      a.compress = type == "sliding_attention"             ? 0
                   : type == "compressed_sparse_attention" ? 4
                                                           : 128;
    }
    a.indexer = a.compress == 4 ? indexer : IndexerDims{};
    layer.attention = a;
    layer.moe.router_bias = i >= tables;
  }
  a.compress = 0;
  a.indexer = {};
  model->prediction = model->layers.back();
  model->prediction.attention = a;
  model->streams = config.CountOr({"hc_mult"}, 64, 4);
  model->hyper_connections = model->streams > 1;
}

}  // namespace contraflow
