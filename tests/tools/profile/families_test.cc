// Published and default configs of all families, each with the parameters that the model has when
// transformers 5.24 makes it, a router's balancing bias counted; kimi_k2, which that lacks, has
// the text model of kimi_k25.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "tests/tools/profile/profile_support.h"
#include "tools/profile/costs_file.h"
#include "tools/profile/family.h"

namespace contraflow::families_test {
namespace {

struct Row {
  std::string name;
  double parameters;
  Json config;
};

std::vector<Row> Rows() {
  const std::string text =
      ReadFile(CF_TEST_DIR "/tools/profile/configs/families.jsonl", int64_t{1} << 20);
  std::vector<Row> rows;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const Json json = Json::parse(text.substr(at, text.find('\n', at) - at));
    const std::string type = json.at("config").at("model_type");
    rows.push_back({json.value("name", type), json.at("parameters"), json.at("config")});
  }
  return rows;
}

ModelShape Shape(const Json& config, std::string_view like = {}) {
  return ReadHfConfig(config.dump(), "c.json", like);
}

/// The published config of this name.
Json Config(const std::string& name) {
  for (Row& row : Rows()) {
    if (row.name == name) return row.config;
  }
  throw Error("no config " + name);
}

const LayerPart* PartNamed(const WorkOfLayer& work, const std::string& name) {
  const auto found = std::ranges::find(work.parts, name, &LayerPart::name);
  return found == work.parts.end() ? nullptr : &*found;
}

/// FLOPs of f of a part, by token.
double FlopsOf(const ModelShape& model, const LayerShape& layer, const std::string& part,
               int64_t sequence) {
  CostSetup setup = SetupOn("h100");
  setup.sequence = sequence;
  const WorkOfLayer work = BlockWork(model, setup, layer);
  const LayerPart* const found = PartNamed(work, part);
  return found == nullptr ? 0 : found->f.flops / static_cast<double>(sequence);
}

TEST_SUITE("unit") {
  TEST_CASE("families: a model has exactly the parameters that were published") {
    const std::vector<Row> rows = Rows();
    CHECK(rows.size() > 100);
    std::set<std::string> types;
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const ModelShape model = Shape(row.config);
      CHECK(ParametersOf(model).model == row.parameters);
      // All sizes that they have are read, but for an encoder's and layers' own.
      CHECK((model.unread.empty() || model.unread == "\"vision_config\"" ||
             model.unread == "\"per_layer_config\""));
      types.insert(row.config.at("model_type").get<std::string>());
    }
    CHECK(types.size() > 60);
  }

  TEST_CASE("families: each model has costs, and they are read as they were written") {
    for (const Row& row : Rows()) {
      CAPTURE(row.name);
      const ModelShape model = Shape(row.config);
      CostSetup setup = SetupOn("b200");
      setup.sequence = 2048;
      setup.expert_parallel =
          model.has_experts() && model.layers.back().moe.experts % 8 == 0 ? 8 : 1;
      if (!model.has_experts()) setup.expert_parallel = 1;
      const ModelCosts costs = CostsOf(model, setup);
      const CostModel read = ReadCosts(WriteCostsByLayer(model, setup, costs), "c.json");
      int64_t layers = 0;
      std::set<std::string> names;
      for (const LayerEstimate& layer : costs.layers) {
        layers += layer.repeat;
        CHECK(names.insert(layer.name).second);
        CHECK(layer.f > 0);
        CHECK(layer.w_stash_bytes <= layer.activation_bytes);
      }
      const auto modules = static_cast<int64_t>(model.predictions);
      CHECK(layers == static_cast<int64_t>(model.layers.size()) + 2 + modules);
      CHECK(read.LayerCount() == layers);
    }
  }

  TEST_CASE("families: a token takes two FLOPs for each parameter that it meets") {
    for (const Row& row : Rows()) {
      CAPTURE(row.name);
      const ModelShape model = Shape(row.config);
      CostSetup setup = SetupOn("h100");
      setup.sequence = 64;
      double flops = 0, met = 0;
      for (const LayerShape& layer : model.layers) {
        const WorkOfLayer work = BlockWork(model, setup, layer);
        for (const LayerPart& part : work.parts) {
          if (part.kind != WorkKind::kAttention) flops += part.f.flops / 64;
        }
        const auto experts = static_cast<double>(std::max<int64_t>(1, layer.moe.experts));
        const auto visited = static_cast<double>(layer.moe.top_k);
        met += work.parameters - work.expert_parameters * (1 - visited / experts);
      }
      // Norms and the like are met as well, by no matmul.
      CHECK(flops / met < 2.0001);
      CHECK(flops / met > 1.97);
    }
  }

  TEST_CASE("families: a split layer has a share of the parameters of a whole one") {
    for (const char* name : {"Qwen/Qwen3.5-397B-A17B", "deepseek-ai/DeepSeek-V4-Pro",
                             "nvidia/Nemotron-H-56B-Base-8K", "XiaomiMiMo/MiMo-V2-Flash"}) {
      CAPTURE(name);
      const ModelShape model = Shape(Config(name));
      CostSetup setup = SetupOn("h100");
      double whole = 0, split = 0;
      for (const LayerShape& layer : model.layers) {
        setup.tensor_parallel = 1;
        const double flops = BlockWork(model, setup, layer).parameters;
        setup.tensor_parallel = setup.expert_tensor = 2;
        whole += flops;
        split += BlockWork(model, setup, layer).parameters;
        setup.expert_tensor = 1;
      }
      // A group shares little: routers, norms, latents.
      CHECK(split > whole / 2);
      CHECK(split < whole * 0.53);
    }
  }

  TEST_CASE("families: a wrong value of any key is one error with its path, or is not read") {
    const Json wrong[] = {-1, 0, 1.5, int64_t{1} << 62, "x", true, Json::array(), Json::object()};
    for (const Row& row : Rows()) {
      Json inner = row.config.contains("text_config") ? row.config["text_config"] : row.config;
      for (const auto& [key, value] : inner.items()) {
        for (const Json& bad : wrong) {
          if (key == "model_type") continue;
          Json config = inner;
          config[key] = bad;
          CAPTURE(config.dump());
          const std::string text = Failure([&] {
            const ModelShape model = Shape(config);
            if (!(ParametersOf(model).model > 0)) throw Error("c.json: no parameters");
          });
          CHECK((text == "accepted" || text.starts_with("c.json: ")));
          CHECK(text != "c.json: no parameters");
        }
      }
    }
  }

  TEST_CASE("families: sizes and mixers by kind of layer") {
    const auto count = [](const ModelShape& model, auto of) {
      return std::ranges::count_if(model.layers, of);
    };
    const auto linear = [](const LayerShape& layer) { return layer.linear.heads > 0; };
    const auto attends = [](const LayerShape& layer) { return layer.attention.heads > 0; };
    const auto sparse = [](const LayerShape& layer) { return layer.moe.experts > 0; };
    const auto slides = [](const LayerShape& layer) { return layer.attention.window > 0; };
    const ModelShape qwen = Shape(Config("Qwen/Qwen3.5-397B-A17B"));
    CHECK(count(qwen, linear) == 45);
    CHECK(count(qwen, attends) == 15);
    CHECK(qwen.predictions == 1);
    const ModelShape nano = Shape(Config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"));
    CHECK(count(nano, linear) == 23);
    CHECK(count(nano, attends) == 6);
    CHECK(count(nano, sparse) == 23);
    CHECK(count(Shape(Config("falcon_h1")), linear) == count(Shape(Config("falcon_h1")), attends));
    const ModelShape llama = Shape(Config("meta-llama/Llama-4-Maverick-17B-128E-Instruct"));
    CHECK(count(llama, sparse) == 24);
    CHECK(llama.layers[0].attention.chunk == 8192);
    CHECK(llama.layers[3].attention.chunk == 0);
    const ModelShape mimo = Shape(Config("XiaomiMiMo/MiMo-V2-Flash"));
    CHECK(count(mimo, slides) == 39);
    CHECK(mimo.layers[1].attention.kv_heads == 8);
    CHECK(mimo.layers[0].attention.kv_heads == 4);
    CHECK(Shape(Config("MiniMaxAI/MiniMax-M2.5")).predictions == 3);
    const ModelShape v4 = Shape(Config("deepseek-ai/DeepSeek-V4-Pro"));
    CHECK(v4.streams == 4);
    CHECK(v4.layers[0].attention.compress == 128);
    CHECK(v4.layers[2].attention.indexer.heads == 64);
    CHECK(v4.prediction.attention.compress == 0);
  }

  TEST_CASE("families: layers by letters") {
    Json config = Config("nvidia/Nemotron-H-56B-Base-8K");
    const auto letters = [&](const char* pattern, int layers) {
      config["hybrid_override_pattern"] = pattern;
      config["num_hidden_layers"] = layers;
      return Failure([&] { Shape(config); });
    };
    CHECK(letters("M-|*-/*-", 4) == "accepted");
    CHECK(letters("M-*", 4) ==
          "c.json: /hybrid_override_pattern: must have \"num_hidden_layers\", 4, letters, has 3");
    CHECK(letters("MX", 2) ==
          "c.json: /hybrid_override_pattern: must have letters of \"MG*-E|\", has \"X\"");
    // Experts need keys of their own.
    CHECK(letters("ME", 2) == "c.json: the key \"num_experts\" is missing; add it");
    // The width of an MLP is asked for where there is one.
    config.erase("intermediate_size");
    CHECK(letters("M*M", 3) == "accepted");
    CHECK(letters("M-*", 3) == "c.json: the key \"intermediate_size\" is missing; add it");
  }

  TEST_CASE("families: work in attention that looks at few keys does not grow with the sequence") {
    // Chosen keys are latents of 512 and 64, and their values 512; an indexer scores all keys.
    const ModelShape v32 = Shape(Config("deepseek-ai/DeepSeek-V3.2"));
    const LayerShape& sparse = v32.layers.back();
    CHECK(FlopsOf(v32, sparse, "attention", 4096) == 2.0 * 128 * (192 + 128) * 2048);
    const double keys = 2048 - 2048.0 * 2048 / (2 * 65536);
    CHECK(FlopsOf(v32, sparse, "attention", 65536) ==
          doctest::Approx(2.0 * 128 * (512 + 64 + 512) * keys));
    CHECK(FlopsOf(v32, sparse, "indexer's scores", 65536) == 2.0 * 64 * 128 * 32768);
    // The layers between take the choice of the last that had an indexer.
    Json glm = Config("zai-org/GLM-5");
    glm["index_topk_freq"] = 4;
    const ModelShape shared = Shape(glm);
    CHECK(FlopsOf(shared, shared.layers[3], "indexer's scores", 65536) == 0);
    CHECK(FlopsOf(shared, shared.layers[3], "attention", 65536) ==
          FlopsOf(shared, shared.layers[5], "attention", 65536));
    CHECK(shared.notes == std::vector<std::string>{
                              "layers from 2 on take the choice of keys of earlier ones, which no "
                              "message between stages has"});
    CHECK(v32.notes.empty());
    CHECK(Shape(Config("gemma3n_text")).notes ==
          std::vector<std::string>{
              "layers from 20 on take keys and values of earlier ones, which no message between "
              "stages has",
              "each layer takes its part of a second embedding, which no message has"});
    // Chunks: half of one on average.
    const ModelShape llama = Shape(Config("meta-llama/Llama-4-Maverick-17B-128E-Instruct"));
    CHECK(FlopsOf(llama, llama.layers[0], "attention", 65536) == 2.0 * 40 * 256 * 4096);
    // A state: chunks and states alone.
    const ModelShape qwen = Shape(Config("Qwen/Qwen3.5-397B-A17B"));
    const double chunks = 64.0 * 64 * (3 * 128 + 2 * 128) + 6.0 * 64 * 128 * 128;
    CHECK(FlopsOf(qwen, qwen.layers[0], "chunks and states", 4096) == chunks);
    CHECK(FlopsOf(qwen, qwen.layers[0], "chunks and states", 65536) == chunks);
    // Compressed keys: a window, and one for 128 tokens.
    const ModelShape v4 = Shape(Config("deepseek-ai/DeepSeek-V4-Pro"));
    const double window = 128 - 128.0 * 128 / (2 * 65536);
    CHECK(FlopsOf(v4, v4.layers[0], "attention", 65536) ==
          doctest::Approx(2.0 * 128 * 1024 * (window + 65536 / 128 / 2)));
  }

  TEST_CASE("families: what is split, sent and gathered") {
    // 64 heads of values over 32 devices, 16 of keys: two devices have a copy of each of these.
    const ModelShape qwen = Shape(Config("Qwen/Qwen3.5-397B-A17B"));
    CostSetup setup = SetupOn("h100");
    setup.tensor_parallel = 32;
    const WorkOfLayer linear = BlockWork(qwen, setup, qwen.layers[0]);
    CHECK(PartNamed(linear, "mixer's inputs")->f.flops ==
          2.0 * 4096 * 4096 * (2 * 2 * 128 + 2 * 1 * 128 + 2 * 2));
    // The indexer has queries and keys to give gradients to, attention makes its scores again.
    const ModelShape v32 = Shape(Config("deepseek-ai/DeepSeek-V3.2"));
    const WorkOfLayer sparse = BlockWork(v32, SetupOn("h100"), v32.layers.back());
    const LayerPart* const scores = PartNamed(sparse, "indexer's scores");
    CHECK(scores->b.flops == 2 * scores->f.flops);
    // Experts that see latents are sent these.
    ModelShape nano = Shape(Config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"));
    LayerShape experts = nano.layers[1];
    setup.tensor_parallel = 2;
    setup.expert_parallel = 8;
    const WorkOfLayer wide = BlockWork(nano, setup, experts);
    experts.moe.latent = nano.hidden / 2;
    const WorkOfLayer narrow = BlockWork(nano, setup, experts);
    CHECK(narrow.dispatch.nvlink_bytes == wide.dispatch.nvlink_bytes / 2);
    CHECK(narrow.expert_parameters == wide.expert_parameters / 2);
    // A half alone gathers its input and scatters its output once: the shared expert, or a mixer.
    for (const size_t alone : {size_t{0}, size_t{1}}) {
      const WorkOfLayer half = BlockWork(nano, setup, nano.layers[alone]);
      CHECK(std::ranges::count(half.parts, WorkKind::kTensorParallel, &LayerPart::kind) == 1);
      CHECK(half.halves == (alone == 1));
    }
  }

  TEST_CASE("families: streams are as many messages, and kept") {
    const ModelShape v4 = Shape(Config("deepseek-ai/DeepSeek-V4-Pro"));
    CostSetup setup = SetupOn("b200");
    const ModelCosts costs = CostsOf(v4, setup);
    CHECK(costs.layers[0].output_bytes == int64_t{4} * 4096 * 7168 * 2);
    CHECK(costs.message.bytes == costs.layers[0].output_bytes);
    const WorkOfLayer layer = BlockWork(v4, setup, v4.layers.back());
    const auto input = std::ranges::find(layer.kept, "input", &Kept::name);
    CHECK(input->bytes == static_cast<double>(costs.layers[0].output_bytes));
  }

  TEST_CASE("families: an unknown type is refused with the nearest, and read like it if asked") {
    Json config = Config("qwen3_moe");
    const double parameters = ParametersOf(Shape(config)).model;
    config["model_type"] = "qwen9_moe";
    config["delta_rank"] = 64;
    const std::string text = Failure([&] { Shape(config); });
    CHECK(
        text.starts_with("c.json: /model_type: unknown model type \"qwen9_moe\"; the nearest by "
                         "its keys is `like` qwen3_moe, which would not read \"delta_rank\"; "
                         "known are: "));
    const ModelShape like = Shape(config, "qwen3_moe");
    CHECK(like.model_type == "qwen9_moe read as qwen3_moe");
    CHECK(ParametersOf(like).model == parameters);
    CHECK(Failure([&] { Shape(config, "qwen3_mo"); })
              .starts_with("`like`: unknown model type \"qwen3_mo\" (did you mean \"qwen3_moe\"?); "
                           "known are: "));
    // The text model may have a type that is known, whatever is around it.
    CHECK(ParametersOf(Shape({{"model_type", "seer"}, {"text_config", Config("qwen3")}})).model ==
          ParametersOf(Shape(Config("qwen3"))).model);
  }

  TEST_CASE("families: a row is a few lines, and each type stands once") {
    std::map<std::string, int> rows;
    for (const Family& family : Families()) {
      for (size_t at = 0, end = 0; end != std::string_view::npos; at = end + 1) {
        end = family.types.find(' ', at);
        ++rows[std::string(family.types.substr(at, end - at))];
      }
      CHECK((family.other != Mixer::kLinear || family.linear != nullptr));
    }
    for (const auto& row : rows) {
      CAPTURE(row.first);
      CHECK(row.second == 1);
    }
  }
}

}  // namespace
}  // namespace contraflow::families_test
