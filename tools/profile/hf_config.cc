#include "tools/profile/hf_config.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

// Some configs list every default of the library.
constexpr JsonLimits kLimits = {.bytes = kMaxHfConfigBytes, .members = 512};

// Far above every model there is, and so low that no product of them loses a digit in a double.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMostLayers = 1 << 11;
constexpr int64_t kMaxExperts = 1 << 14;

/// The text with Python's Infinity, -Infinity and NaN, which JSON does not have, in quotes. A key
/// that is read refuses them.
std::string QuoteNonFinite(std::string_view text) {
  std::string quoted;
  bool inside = false;
  for (size_t at = 0, taken = 1; at < text.size(); at += taken, taken = 1) {
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
      if (!inside && text.substr(at).starts_with(name)) taken = name.size();
    }
    const std::string mark(taken > 1, '"');
    if (inside && text[at] == '\\') taken = 2;
    if (text[at] == '"') inside = !inside;
    quoted += mark + std::string(text.substr(at, taken)) + mark;
  }
  return quoted;
}

/// Default of transformers for a key that a config leaves out.
struct Default {
  std::string_view key;
  int64_t value;
};

/// A config.json, or the member of it with the text model.
struct Config {
  JsonCursor json;
  std::vector<std::string>* taken;  ///< as ModelShape::defaults
  std::set<std::string_view>* read;
  std::span<const Default> defaults = {};

  JsonCursor Required(const char* key) const {
    read->insert(key);
    return json.Required(key);
  }
};

/// A key that is absent or null has its default.
std::optional<JsonCursor> Given(const Config& config, const char* key) {
  config.read->insert(key);
  std::optional<JsonCursor> field = config.json.Optional(key);
  return field && !field->IsNull() ? field : std::nullopt;
}

/// The default of a key that is not given, if it has one.
std::optional<int64_t> TakeDefault(const Config& config, const char* key) {
  if (Given(config, key)) return std::nullopt;
  const auto found = std::ranges::find(config.defaults, key, &Default::key);
  if (found == config.defaults.end()) return std::nullopt;
  config.taken->push_back(std::string(key) + " " + std::to_string(found->value));
  return found->value;
}

int64_t Count(const Config& config, const char* key, int64_t high, int64_t low = 1) {
  if (const auto value = TakeDefault(config, key)) return *value;
  return config.Required(key).Integer("a whole number", low, high);
}

int64_t CountOr(const Config& config, const char* key, int64_t high, int64_t absent,
                int64_t low = 1) {
  if (const auto field = Given(config, key)) return field->Integer("a whole number", low, high);
  return TakeDefault(config, key).value_or(absent);
}

bool FlagOr(const Config& config, const char* key, bool absent) {
  const auto field = Given(config, key);
  return field ? field->Boolean("a flag") : absent;
}

/// Width, vocabulary, layers without windows or experts.
ModelShape Trunk(const Config& config, bool tied) {
  ModelShape model;
  model.hidden = Count(config, "hidden_size", kMaxWidth);
  model.vocabulary = Count(config, "vocab_size", kMaxVocabulary);
  model.layers.resize(static_cast<size_t>(Count(config, "num_hidden_layers", kMostLayers)));
  model.tied = FlagOr(config, "tie_word_embeddings", tied);
  return model;
}

AttentionDims GroupedAttention(const Config& config, const ModelShape& model) {
  AttentionDims attention;
  attention.heads = Count(config, "num_attention_heads", kMaxHeads);
  attention.kv_heads = CountOr(config, "num_key_value_heads", kMaxHeads, attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.Required("num_key_value_heads")
        .Fail("must divide \"num_attention_heads\", " + std::to_string(attention.heads) + ", is " +
              std::to_string(attention.kv_heads));
  }
  attention.head_dim = CountOr(config, "head_dim", kMaxWidth, 0);
  if (attention.head_dim == 0) {
    if (model.hidden % attention.heads != 0) {
      config.Required("num_attention_heads")
          .Fail("must divide \"hidden_size\", " + std::to_string(model.hidden) +
                ", where there is no \"head_dim\", is " + std::to_string(attention.heads));
    }
    attention.head_dim = model.hidden / attention.heads;
  }
  attention.value_dim = attention.head_dim;
  return attention;
}

void AllBiases(const Config& config, bool absent, AttentionDims* attention) {
  attention->qkv_bias = attention->out_bias = FlagOr(config, "attention_bias", absent);
}

/// "layer_types" where it is given, else a window in the layers for which `slides(index)`.
template <typename Slides>
void Windows(const Config& config, Slides slides, ModelShape* model) {
  constexpr int64_t kMaxWindow = int64_t{1} << 30;
  const auto types = Given(config, "layer_types");
  const size_t layers = model->layers.size();
  if (types && types->Size("a list with the kind of each layer") != layers) {
    types->Fail("must have \"num_hidden_layers\", " + std::to_string(layers) + ", entries, has " +
                std::to_string(types->Size("")));
  }
  int64_t window = 0;
  for (size_t i = 0; i < layers; ++i) {
    bool has = false;
    if (types) {
      const JsonCursor item = types->Item(i);
      const std::string& type = item.String("the kind of a layer");
      has = type == "sliding_attention";
      if (!has && type != "full_attention") {
        item.Fail("must be \"full_attention\" or \"sliding_attention\", is " + Excerpt(type));
      }
    } else {
      has = slides(static_cast<int64_t>(i));
    }
    if (has && window == 0) window = Count(config, "sliding_window", kMaxWindow);
    if (has) model->layers[i].window = window;
  }
}

/// Number of experts and how many a token visits; "num_experts" and such are the names of the keys.
MoeDims Experts(const Config& config, const char* experts, const char* width) {
  MoeDims moe;
  moe.experts = Count(config, experts, kMaxExperts, 2);
  moe.top_k = Count(config, "num_experts_per_tok", moe.experts);
  moe.width = Count(config, width, kMaxWidth);
  return moe;
}

void AllLayersHaveExperts(ModelShape* model) {
  for (BlockShape& layer : model->layers) layer.moe = true;
}

ModelShape Llama(const Config& config) {
  ModelShape model = Trunk(config, false);
  model.attention = GroupedAttention(config, model);
  AllBiases(config, false, &model.attention);
  model.dense_width = Count(config, "intermediate_size", kMaxWidth);
  model.mlp_bias = FlagOr(config, "mlp_bias", false);
  return model;
}

ModelShape Mistral(const Config& config) {
  ModelShape model = Trunk(config, false);
  model.attention = GroupedAttention(config, model);
  model.dense_width = Count(config, "intermediate_size", kMaxWidth);
  const bool slides = Given(config, "sliding_window").has_value();
  Windows(
      config, [&](int64_t) { return slides; }, &model);
  return model;
}

ModelShape Mixtral(const Config& config) {
  ModelShape model = Mistral(config);
  model.moe = Experts(config, "num_local_experts", "intermediate_size");
  model.dense_width = 0;
  AllLayersHaveExperts(&model);
  return model;
}

ModelShape Qwen(const Config& config, bool third) {
  ModelShape model = Trunk(config, false);
  model.attention = GroupedAttention(config, model);
  if (third) {
    AllBiases(config, false, &model.attention);
    model.attention.head_norms = true;
  } else {
    model.attention.qkv_bias = true;
  }
  model.dense_width = Count(config, "intermediate_size", kMaxWidth);
  config.read->insert("sliding_window");
  const bool slides = FlagOr(config, "use_sliding_window", false);
  const int64_t first =
      slides ? CountOr(config, "max_window_layers", kMostLayers, 28, 0) : kMostLayers;
  Windows(
      config, [&](int64_t i) { return slides && i >= first; }, &model);
  return model;
}

ModelShape Qwen2(const Config& config) { return Qwen(config, false); }
ModelShape Qwen3(const Config& config) { return Qwen(config, true); }

void QwenExperts(const Config& config, ModelShape* model) {
  model->moe = Experts(config, "num_experts", "moe_intermediate_size");
  const int64_t step = CountOr(config, "decoder_sparse_step", kMostLayers, 1);
  for (size_t i = 0; i < model->layers.size(); ++i) {
    model->layers[i].moe = (static_cast<int64_t>(i) + 1) % step == 0;
  }
  const auto dense = Given(config, "mlp_only_layers");
  if (!dense) return;
  const int last = static_cast<int>(model->layers.size()) - 1;
  for (const int i : dense->Integers("a layer", 0, last, model->layers.size())) {
    model->layers[static_cast<size_t>(i)].moe = false;
  }
}

ModelShape Qwen2Moe(const Config& config) {
  ModelShape model = Qwen2(config);
  QwenExperts(config, &model);
  model.moe.shared_width = Count(config, "shared_expert_intermediate_size", kMaxWidth);
  model.moe.shared_gate = true;
  return model;
}

ModelShape Qwen3Moe(const Config& config) {
  ModelShape model = Qwen3(config);
  QwenExperts(config, &model);
  return model;
}

AttentionDims LatentAttention(const Config& config) {
  AttentionDims attention;
  // Copies of what the latents give.
  config.read->insert({"num_key_value_heads", "head_dim", "qk_head_dim"});
  attention.heads = attention.kv_heads = Count(config, "num_attention_heads", kMaxHeads);
  attention.rope_dim = Count(config, "qk_rope_head_dim", kMaxWidth);
  attention.head_dim = attention.rope_dim + Count(config, "qk_nope_head_dim", kMaxWidth);
  attention.value_dim = Count(config, "v_head_dim", kMaxWidth);
  attention.q_latent = CountOr(config, "q_lora_rank", kMaxWidth, 0);
  attention.kv_latent = Count(config, "kv_lora_rank", kMaxWidth);
  AllBiases(config, false, &attention);
  return attention;
}

ModelShape DeepSeekV3(const Config& config) {
  ModelShape model = Trunk(config, false);
  model.attention = LatentAttention(config);
  model.dense_width = Count(config, "intermediate_size", kMaxWidth);
  model.moe = Experts(config, "n_routed_experts", "moe_intermediate_size");
  const int64_t shared = CountOr(config, "n_shared_experts", 64, 0, 0);
  model.moe.shared_width = shared * model.moe.width;
  model.moe.router_bias = true;  // the correction that balances the experts
  model.moe.groups = CountOr(config, "n_group", model.moe.experts, 1);
  model.moe.top_groups = CountOr(config, "topk_group", model.moe.groups, model.moe.groups);
  const auto layers = static_cast<int64_t>(model.layers.size());
  const int64_t dense = CountOr(config, "first_k_dense_replace", layers, 0, 0);
  const int64_t frequency = CountOr(config, "moe_layer_freq", kMostLayers, 1);
  for (int64_t i = dense; i < layers; ++i) {
    model.layers[static_cast<size_t>(i)].moe = i % frequency == 0;
  }
  model.predictions = CountOr(config, "num_nextn_predict_layers", 16, 0, 0);
  return model;
}

ModelShape Gemma(const Config& config, int64_t pattern) {
  ModelShape model = Trunk(config, true);
  if (config.defaults.empty()) config.Required("head_dim");
  model.attention = GroupedAttention(config, model);
  AllBiases(config, false, &model.attention);
  model.dense_width = Count(config, "intermediate_size", kMaxWidth);
  model.norms = 4;
  Windows(
      config, [&](int64_t i) { return (i + 1) % pattern != 0; }, &model);
  return model;
}

ModelShape Gemma2(const Config& config) { return Gemma(config, 2); }

/// Defaults of Gemma3TextConfig; published configs leave out what is as here.
constexpr Default kGemma3Defaults[] = {
    {"vocab_size", 262'208},   {"hidden_size", 2304},      {"intermediate_size", 9216},
    {"num_hidden_layers", 26}, {"num_attention_heads", 8}, {"num_key_value_heads", 4},
    {"head_dim", 256},         {"sliding_window", 4096},
};

ModelShape Gemma3Text(const Config& config) {
  const Config text{config.json, config.taken, config.read, kGemma3Defaults};
  ModelShape model = Gemma(text, CountOr(text, "sliding_window_pattern", kMostLayers, 6));
  model.attention.head_norms = true;
  return model;
}

/// With pictures as well: the text model is in a member of its own.
ModelShape Gemma3(const Config& config) {
  return Gemma3Text({config.Required("text_config"), config.taken, config.read});
}

ModelShape GptOss(const Config& config) {
  ModelShape model = Trunk(config, false);
  config.Required("head_dim");
  config.read->insert("experts_per_token");  // a copy
  model.attention = GroupedAttention(config, model);
  AllBiases(config, true, &model.attention);
  model.attention.sinks = true;
  model.moe = Experts(config, "num_local_experts", "intermediate_size");
  model.moe.router_bias = model.moe.expert_bias = true;
  AllLayersHaveExperts(&model);
  Windows(
      config, [](int64_t i) { return i % 2 == 0; }, &model);
  return model;
}

struct ModelType {
  std::string_view name;
  ModelShape (*read)(const Config& config);
};
constexpr ModelType kModelTypes[] = {
    {"deepseek_v3", DeepSeekV3},
    {"gemma2", Gemma2},
    {"gemma3", Gemma3},
    {"gemma3_text", Gemma3Text},
    {"gpt_oss", GptOss},
    {"kimi_k2", DeepSeekV3},
    {"llama", Llama},
    {"mistral", Mistral},
    {"mixtral", Mixtral},
    {"qwen2", Qwen2},
    {"qwen2_moe", Qwen2Moe},
    {"qwen3", Qwen3},
    {"qwen3_moe", Qwen3Moe},
};

/// True for the same name, or one that lacks a letter: others are of models with other layers.
bool IsSlip(const std::string& asked, const std::string& known) {
  for (size_t i = 1; i < known.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(known[i])) != 0;
    if (!digit && known.substr(0, i) + known.substr(i + 1) == asked) return true;
  }
  return asked == known;
}

/// Adds the keys that say how large something is and were not read.
void ListUnread(const Json& config, const std::set<std::string_view>& read, std::string* unread) {
  // Parts of names that say nothing about layers.
  constexpr std::string_view kIdle[] = {"token",       "rope",    "rotary",
                                        "max_",        "context", "scalar",
                                        "pretraining", "ep_size", "quantization"};
  for (const auto& [key, value] : config.items()) {
    const bool size = value.is_number_integer() && value > 1;
    const bool list = value.is_array() && !value.empty() && value[0].is_number_integer();
    const bool part = value.is_object() && key.ends_with("_config");
    const auto in = [&, &name = key](std::string_view word) {
      return name.find(word) != name.npos;
    };
    if (!(size || list || part) || read.contains(key) || std::ranges::any_of(kIdle, in)) continue;
    *unread += (unread->empty() ? "" : ", ") + Excerpt(key);
  }
}

}  // namespace

ModelShape ReadHfConfig(std::string_view text, const std::string& place) {
  const JsonDocument document = ParseJson(QuoteNonFinite(text), place, kLimits);
  const JsonCursor config = document.Root();
  const JsonCursor type = config.Required("model_type");
  const std::string& name = type.String("the kind of the model");
  std::string list, hint;
  for (const ModelType& known : kModelTypes) {
    if (known.name == name) {
      std::vector<std::string> taken;
      std::set<std::string_view> read;
      ModelShape model = known.read({config, &taken, &read});
      model.model_type = name;
      model.defaults = std::move(taken);
      ListUnread(*document.value, read, &model.unread);
      if (read.contains("text_config")) {
        ListUnread((*document.value)["text_config"], read, &model.unread);
      }
      return model;
    }
    if (IsSlip(Plain(name), Plain(known.name))) {
      hint = " (did you mean \"" + std::string(known.name) + "\"?)";
    }
    list += (list.empty() ? "" : ", ") + std::string(known.name);
  }
  type.Fail("unknown model type " + Excerpt(name) + hint + "; known are: " + list);
}

}  // namespace contraflow
