#include "tools/profile/hf_config.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/layer_cost.h"
#include "tests/support/failure.h"
#include "tests/tools/profile/profile_support.h"
#include "tools/profile/family.h"

namespace contraflow::hf_config_test {
namespace {

std::string Read(const std::string& text) {
  return Failure([&] { ReadHfConfig(text, "c.json"); });
}

/// A Llama config with `member` in place of its first of this key, or after the others.
std::string Llama(const std::string& key, const std::string& value) {
  std::vector<std::pair<std::string, std::string>> members = {
      {"model_type", "\"llama\""}, {"hidden_size", "64"},        {"intermediate_size", "128"},
      {"vocab_size", "1000"},      {"num_attention_heads", "8"}, {"num_key_value_heads", "2"},
      {"num_hidden_layers", "3"}};
  const auto found =
      std::ranges::find_if(members, [&](const auto& member) { return member.first == key; });
  if (found == members.end()) {
    members.emplace_back(key, value);
  } else if (value.empty()) {
    members.erase(found);
  } else {
    found->second = value;
  }
  std::string text;
  for (const auto& [name, each] : members) {
    text += (text.empty() ? "{\"" : ", \"") + name + "\": " + each;
  }
  return text + "}";
}

/// A MoE config: of `type`, with `more` members.
std::string Typed(const std::string& type, const std::string& more) {
  return "{\"model_type\": \"" + type +
         "\", \"hidden_size\": 64, \"intermediate_size\": 128, \"vocab_size\": 1000, "
         "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"num_hidden_layers\": 4" +
         more + "}";
}

ModelShape Shape(const std::string& text) { return ReadHfConfig(text, "c.json"); }

AttentionDims Attention(const ModelShape& model) { return model.layers.front().attention; }

std::vector<int64_t> Windows(const ModelShape& model) {
  std::vector<int64_t> windows;
  for (const LayerShape& layer : model.layers) windows.push_back(layer.attention.window);
  return windows;
}

/// "apertus, arcee, ..", as the table has them.
std::string KnownTypes() {
  std::vector<std::string> types;
  for (const Family& family : Families()) {
    std::istringstream words{std::string(family.types)};
    for (std::string word; words >> word;) types.push_back(word);
  }
  std::ranges::sort(types);
  std::string list;
  for (const std::string& type : types) list += (list.empty() ? "" : ", ") + type;
  return list;
}

/// Numbers of the layers with experts.
std::vector<int> MoeLayers(const ModelShape& model) {
  std::vector<int> layers;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].moe.experts > 0) layers.push_back(static_cast<int>(i));
  }
  return layers;
}

TEST_SUITE("unit") {
  TEST_CASE("hf config: a model has exactly the parameters that were published") {
    const struct {
      const char* name;
      double parameters;
    } rows[] = {
        {"deepseek-v3", 671'026'419'200},  {"gemma-2-9b", 9'241'705'984},
        {"gemma-3-27b", 27'009'346'304},   {"gemma-3-4b", 3'880'263'168},
        {"gpt-oss-120b", 116'829'156'672}, {"llama-3.1-405b", 405'853'388'800},
        {"llama-3.1-70b", 70'553'706'496}, {"llama-3.1-8b", 8'030'261'248},
        {"mixtral-8x7b", 46'702'792'704},  {"qwen3-235b-a22b", 235'093'634'560},
    };
    for (const auto& row : rows) {
      CAPTURE(row.name);
      CHECK(ParametersOf(PublishedModel(row.name)).model == row.parameters);
    }
    // A module: a layer, the projection of both inputs and three norms.
    CHECK(ParametersOf(PublishedModel("deepseek-v3")).predictions == 11'610'068'224);
    CHECK(ParametersOf(PublishedModel("llama-3.1-8b")).predictions == 0);
  }

  TEST_CASE("hf config: shapes of each family") {
    const ModelShape llama = Shape(Llama("head_dim", "null"));
    CHECK(llama.model_type == "llama");
    CHECK(Attention(llama).head_dim == 8);
    CHECK(Attention(llama).kv_heads == 2);
    CHECK(!llama.tied);
    CHECK(Attention(Shape(Llama("head_dim", "16"))).head_dim == 16);
    CHECK(Attention(Shape(Llama("num_key_value_heads", ""))).kv_heads == 8);
    CHECK(Shape(Llama("tie_word_embeddings", "true")).tied);
    CHECK(Attention(Shape(Llama("attention_bias", "true"))).out_bias);
    const ModelShape qwen2 = Shape(Typed("qwen2", ""));
    CHECK(Attention(qwen2).qkv_bias);
    CHECK(!Attention(qwen2).out_bias);
    CHECK(Attention(qwen2).head_norms == HeadNorms::kNone);
    CHECK(Attention(Shape(Typed("qwen3", ""))).head_norms == HeadNorms::kEach);
    const ModelShape deepseek = PublishedModel("deepseek-v3");
    CHECK(Attention(deepseek).head_dim == 192);
    CHECK(MoeLayers(deepseek).size() == 58);
    CHECK(MoeLayers(deepseek).front() == 3);
    CHECK(deepseek.predictions == 1);
    const std::string experts =
        ", \"num_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 32";
    CHECK(MoeLayers(Shape(Typed("qwen3_moe", experts + ", \"decoder_sparse_step\": 2"))) ==
          std::vector<int>{1, 3});
    CHECK(MoeLayers(Shape(Typed("qwen3_moe", experts + ", \"mlp_only_layers\": [0, 2]"))) ==
          std::vector<int>{1, 3});
    const ModelShape shared =
        Shape(Typed("qwen2_moe", experts + ", \"shared_expert_intermediate_size\": 48"));
    CHECK(shared.layers.front().moe.shared_width == 48);
    const auto parameters = [](const ModelShape& model) { return ParametersOf(model).model; };
    // The shared expert, with a gate of one column, and biases of q, k and v in place of norms.
    CHECK(parameters(shared) - parameters(Shape(Typed("qwen3_moe", experts))) ==
          4 * (3 * 64 * 48 + 64 + (8 + 2 * 2) * 8 - 2 * 8));
    const std::string gemma = ", \"head_dim\": 8, \"sliding_window\": 9";
    CHECK(parameters(Shape(Typed("gemma3_text", gemma))) -
              parameters(Shape(Typed("gemma2", gemma))) ==
          4 * 2 * 8);
    std::string text = ReadFile(CF_TEST_DIR "/tools/profile/configs/deepseek-v3.json", 1 << 20);
    const std::string frequency = "\"moe_layer_freq\": 1";
    text.replace(text.find(frequency), frequency.size(), "\"moe_layer_freq\": 20");
    CHECK(MoeLayers(Shape(text)) == std::vector<int>{20, 40, 60});
  }

  TEST_CASE("hf config: windows of attention") {
    CHECK(Windows(Shape(Typed("mistral", ", \"sliding_window\": 9"))) ==
          std::vector<int64_t>{9, 9, 9, 9});
    CHECK(Windows(Shape(Typed("mistral", ", \"sliding_window\": null"))) ==
          std::vector<int64_t>(4, 0));
    CHECK(Windows(Shape(Typed("qwen2",
                              ", \"use_sliding_window\": true, \"sliding_window\": 9, "
                              "\"max_window_layers\": 3"))) == std::vector<int64_t>{0, 0, 0, 9});
    CHECK(Windows(Shape(Typed("gemma2", ", \"head_dim\": 8, \"sliding_window\": 9"))) ==
          std::vector<int64_t>{9, 0, 9, 0});
    const std::string gemma =
        ", \"head_dim\": 8, \"sliding_window\": 9, \"sliding_window_pattern\": 3";
    CHECK(Windows(Shape(Typed("gemma3_text", gemma))) == std::vector<int64_t>{9, 9, 0, 9});
    CHECK(Windows(Shape(Typed("gemma2",
                              ", \"head_dim\": 8, \"sliding_window\": 9, \"layer_types\": "
                              "[\"full_attention\", \"full_attention\", \"sliding_attention\", "
                              "\"full_attention\"]"))) == std::vector<int64_t>{0, 0, 9, 0});
    CHECK(Windows(PublishedModel("gpt-oss-120b"))[34] == 128);
    CHECK(Windows(PublishedModel("gpt-oss-120b"))[35] == 0);
    // With pictures: the same, one level down.
    const std::string text = Typed("gemma3_text", gemma);
    const ModelShape both = Shape("{\"model_type\": \"gemma3\", \"text_config\": " + text + "}");
    CHECK(both.layers == Shape(text).layers);
    CHECK(both.model_type == "gemma3");
  }

  TEST_CASE("hf config: what Gemma 3 leaves out has the library's default, and is told") {
    using Taken = std::vector<std::string>;
    const ModelShape small = PublishedModel("gemma-3-4b");
    CHECK(small.defaults == Taken{"vocab_size 262208", "num_attention_heads 8",
                                  "num_key_value_heads 4", "head_dim 256"});
    CHECK(small.model_type == "gemma3");
    CHECK(Windows(small)[4] == 1024);
    CHECK(Windows(small)[5] == 0);
    CHECK(PublishedModel("gemma-3-27b").defaults == Taken{"vocab_size 262208"});
    CHECK(PublishedModel("gemma-2-9b").defaults.empty());
    const ModelShape bare = Shape("{\"model_type\": \"gemma3_text\", \"head_dim\": null}");
    CHECK(bare.defaults == Taken{"hidden_size 2304", "vocab_size 262208", "num_hidden_layers 26",
                                 "num_attention_heads 8", "num_key_value_heads 4", "head_dim 256",
                                 "intermediate_size 9216", "sliding_window 4096"});
    CHECK(bare.tied);
    CHECK(Shape(Typed("gemma3_text", ", \"head_dim\": 8, \"sliding_window\": 9")).defaults.empty());
  }

  TEST_CASE("hf config: what is wrong is refused with its path") {
    const std::string moe = ", \"num_local_experts\": 8, \"num_experts_per_tok\": ";
    const struct {
      std::string text, message;
    } rows[] = {
        {"{",
         "c.json:1:2: not valid JSON: unexpected end of input; expected string literal; the "
         "document ends here; was it truncated?"},
        {"[]", "c.json: must be an object, is an array"},
        {"{} // x", "c.json:1:4: not valid JSON: invalid literal; expected end of input"},
        {"{\"hidden_size\": 64}", "c.json: the key \"model_type\" is missing; add it"},
        {"{\"model_type\": 3}",
         "c.json: /model_type: must be the kind of the model in quotes, is 3"},
        {"{\"model_type\": \"lama\"}",
         "c.json: /model_type: unknown model type \"lama\" (did you mean \"llama\"?); known are: " +
             KnownTypes()},
        {Llama("hidden_size", ""), "c.json: the key \"hidden_size\" is missing; add it"},
        {Llama("hidden_size", "0"),
         "c.json: /hidden_size: must be a whole number in 1..1048576, is 0"},
        {Llama("hidden_size", "-64"),
         "c.json: /hidden_size: must be a whole number in 1..1048576, is -64"},
        {Llama("hidden_size", "1e3"),
         "c.json: /hidden_size: must be a whole number in 1..1048576, is 1000.0"},
        {Llama("hidden_size", "9223372036854775807"),
         "c.json: /hidden_size: must be a whole number in 1..1048576, is 9223372036854775807"},
        {Llama("hidden_size", "null"),
         "c.json: /hidden_size: must be a whole number in 1..1048576, is null"},
        {Llama("hidden_size", "65"),
         "c.json: /num_attention_heads: must divide \"hidden_size\", 65, where there is no "
         "\"head_dim\", is 8"},
        {Llama("num_key_value_heads", "3"),
         "c.json: /num_key_value_heads: must divide \"num_attention_heads\", 8, is 3"},
        {Llama("num_hidden_layers", "1000000000"),
         "c.json: /num_hidden_layers: must be a whole number in 1..2048, is 1000000000"},
        {Llama("tie_word_embeddings", "\"yes\""),
         "c.json: /tie_word_embeddings: must be a flag, true or false, is \"yes\""},
        {Typed("gemma2", ", \"sliding_window\": 9"),
         "c.json: the key \"head_dim\" is missing; add it"},
        {Typed("gemma2", ", \"head_dim\": 8"),
         "c.json: the key \"sliding_window\" is missing; add it"},
        {Typed("gemma2", ", \"head_dim\": 8, \"layer_types\": [\"full_attention\"]"),
         "c.json: /layer_types: must have \"num_hidden_layers\", 4, entries, has 1"},
        {Typed("qwen3",
               ", \"layer_types\": [\"full_attention\", \"linear_attention\", "
               "\"full_attention\", \"full_attention\"]"),
         "c.json: /layer_types/1: must be \"full_attention\" or \"sliding_attention\", is "
         "\"linear_attention\""},
        {Typed("mixtral", moe + "9"),
         "c.json: /num_experts_per_tok: must be a whole number in 1..8, is 9"},
        {Typed("qwen3_moe",
               ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
               "\"moe_intermediate_size\": 32, \"mlp_only_layers\": [4]"),
         "c.json: /mlp_only_layers/0: must be a layer in 0..3, is 4"},
        {"{\"model_type\": \"gemma3\"}", "c.json: the key \"text_config\" is missing; add it"},
        {"{\"model_type\": \"gemma3\", \"text_config\": 3}",
         "c.json: /text_config: must be an object, the text model's config"},
        {"{\"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 1.5}}",
         "c.json: /text_config/hidden_size: must be a whole number in 1..1048576, is 1.5"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Read(row.text) == row.message);
    }
    std::string deepseek = ReadFile(CF_TEST_DIR "/tools/profile/configs/deepseek-v3.json", 1 << 20);
    const std::string dense = "\"first_k_dense_replace\": 3", groups = "\"topk_group\": 4";
    std::string text = deepseek;
    text.replace(text.find(dense), dense.size(), "\"first_k_dense_replace\": 62");
    CHECK(Read(text) == "c.json: /first_k_dense_replace: must be a whole number in 0..61, is 62");
    text = deepseek;
    text.replace(text.find(groups), groups.size(), "\"topk_group\": 9");
    CHECK(Read(text) == "c.json: /topk_group: must be a whole number in 1..8, is 9");
  }

  TEST_CASE("hf config: a hint is the same model, spelt otherwise or with one letter amiss") {
    const auto hint = [](const std::string& type) {
      const std::string text = Read("{\"model_type\": \"" + type + "\"}");
      const size_t at = text.find("mean \"");
      return at == std::string::npos ? "" : text.substr(at + 6, text.find("\"?") - at - 6);
    };
    for (const char* other :
         {"mamba2",       "gemma",       "gemma4",    "gemma3n",     "deepseek_v2",
          "deepseek_v32", "deepseek_v4", "llama4",    "llama4_text", "mllama",
          "llava",        "pixtral",     "ministral", "mistral3",    "jamba",
          "qwen",         "qwen3_next",  "qwen3_vl",  "qwen3_5_moe", "gpt_neo",
          "glm4_moe",     "kimi_k25",    ""}) {
      CAPTURE(other);
      CHECK(hint(other).empty());
    }
    CHECK(hint("lama") == "llama");
    CHECK(hint("LLaMA") == "llama");
    CHECK(hint("mixtrl") == "mixtral");
    CHECK(hint("gpt-oss") == "gpt_oss");
    CHECK(hint("Qwen3MoE") == "qwen3_moe");
    CHECK(hint("deepseekv3") == "deepseek_v3");
  }

  TEST_CASE("hf config: sizes that no cost takes into account are named") {
    CHECK(Shape(Llama("attention_chunk_size", "8192")).unread == "\"attention_chunk_size\"");
    CHECK(Shape(Llama("layer_pattern", "[1, 0]")).unread == "\"layer_pattern\"");
    CHECK(Shape(Llama("vision_config", "{}")).unread == "\"vision_config\"");
    for (const auto& [key, value] : {std::pair{"index_topk", "null"},
                                     {"index_topk", "0"},
                                     {"head_dim", "8"},
                                     {"rope_theta", "10000"},
                                     {"eos_token_id", "[7, 8]"},
                                     {"max_position_embeddings", "4096"},
                                     {"rms_norm_eps", "1e-6"},
                                     {"quantization_config", "{}"},
                                     {"hidden_act", "\"silu\""}}) {
      CAPTURE(key);
      CHECK(Shape(Llama(key, value)).unread.empty());
    }
    CHECK(Contains(PublishedModel("gemma-3-4b").unread, "\"vision_config\""));
    for (const char* model : {"deepseek-v3", "gemma-2-9b", "gpt-oss-120b", "llama-3.1-8b",
                              "mixtral-8x7b", "qwen3-235b-a22b"}) {
      CAPTURE(model);
      CHECK(PublishedModel(model).unread.empty());
    }
  }

  TEST_CASE("hf config: numbers that Python writes and JSON does not have") {
    const std::string unread = Llama("time_step_limit", "[0.0, Infinity, -Infinity, {\"x\": NaN}]");
    CHECK(Read(unread) == "accepted");
    CHECK(Shape(unread).layers.size() == 3);
    CHECK(Read(Llama("note", "\"a \\\" Infinity \\\\\"")) == "accepted");
    CHECK(Read(Llama("hidden_size", "NaN")) ==
          "c.json: /hidden_size: must be a whole number in 1..1048576, is \"NaN\"");
    CHECK(Read(Llama("head_dim", "-Infinity")) ==
          "c.json: /head_dim: must be a whole number in 1..1048576, is \"-Infinity\"");
    CHECK(Read(Llama("x", "Infinit")).starts_with("c.json:1:"));
  }

  TEST_CASE("hf config: as many keys as some have, and no more") {
    std::string many;
    for (int i = 0; i < 500; ++i) many += ", \"k" + std::to_string(i) + "\": null";
    CHECK(Read(Typed("llama", many)) == "accepted");
    CHECK(Read(Typed("llama", many + many)) == "c.json: /k0: is given twice; keep one");
    for (int i = 500; i < 510; ++i) many += ", \"k" + std::to_string(i) + "\": null";
    CHECK(Read(Typed("llama", many)) == "c.json: /k505: an object with more than 512 keys");
    CHECK(Read(std::string((1 << 20) + 1, ' ')) ==
          "c.json: has 1048577 bytes; at most 1048576 are read");
  }
}

}  // namespace
}  // namespace contraflow::hf_config_test
