#include "tools/profile/costs_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/json.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/tools/profile/profile_support.h"

namespace contraflow::costs_file_test {
namespace {

JsonDocument Parse(const std::string& text) {
  return ParseJson(text, "costs.json", {.bytes = 1 << 24, .comments = true});
}

std::string Write(const ModelShape& model, const CostSetup& setup) {
  return WriteCostsByLayer(model, setup, CostsOf(model, setup));
}

/// Time of a member in the unit of the file, microseconds, as ticks.
Time Ticks(const JsonCursor& object, const char* key) {
  return ToTicks(object.Required(key).Number("a time"), Unit::kMicroseconds, key);
}

TEST_SUITE("unit") {
  TEST_CASE("costs file: it says what the costs are, for every published model") {
    for (const char* name : {"deepseek-v3", "gemma-2-9b", "gpt-oss-120b", "llama-3.1-405b",
                             "llama-3.1-8b", "mixtral-8x7b", "qwen3-235b-a22b"}) {
      CAPTURE(name);
      const ModelShape model = PublishedModel(name);
      CostSetup setup = SetupOn("h200");
      setup.expert_parallel = model.has_experts() ? 8 : 1;
      const ModelCosts costs = CostsOf(model, setup);
      const std::string text = Write(model, setup);
      const JsonDocument document = Parse(text);
      const JsonCursor root = document.Root();
      root.Keys("costs", {"unit", "source", "parallel", "gpu", "tokens", "sums", "layers", "comm"});
      CHECK(root.Required("unit").String("a unit") == "us");
      CHECK(root.Required("comm").Required("bytes").Integer("bytes", 0, 1 << 30) ==
            costs.message.bytes);
      const JsonCursor layers = root.Required("layers");
      REQUIRE(layers.Size("layers") == costs.layers.size());
      std::set<std::string> names;
      size_t of_model = 0;
      for (size_t i = 0; i < costs.layers.size(); ++i) {
        const LayerEstimate& cost = costs.layers[i];
        const JsonCursor layer = layers.Item(i);
        CAPTURE(cost.name);
        CHECK(layer.Required("name").String("a name") == cost.name);
        CHECK(names.insert(cost.name).second);
        const auto repeat = layer.Optional("repeat");
        CHECK((repeat ? repeat->Integer("times", 2, 1000) : 1) == cost.repeat);
        if (cost.name.starts_with("dense") || cost.name.starts_with("moe")) {
          of_model += static_cast<size_t>(cost.repeat);
        }
        const auto tied = layer.Optional("tied");
        const std::string of = model.tied && i == 0 ? "head"
                               : cost.name == "mtp" ? "embedding"
                                                    : "";
        CHECK((tied ? tied->String("a name") : "") == of);
        const auto bytes = [&](const char* key) {
          return layer.Required(key).Integer("bytes", 0, int64_t{1} << 40);
        };
        const JsonCursor parameters = layer.Required("parameter_bytes");
        REQUIRE(parameters.IsObject() == (cost.work.expert_parameters > 0));
        if (parameters.IsObject()) {
          const auto kind = [&](const char* key) {
            return parameters.Required(key).Integer("bytes", 0, int64_t{1} << 40);
          };
          CHECK(kind("experts") == static_cast<int64_t>(2 * cost.work.expert_parameters));
          CHECK(kind("experts") + kind("rest") == cost.parameter_bytes);
        } else {
          CHECK(bytes("parameter_bytes") == cost.parameter_bytes);
        }
        CHECK(bytes("gradient_bytes") == cost.gradient_bytes);
        CHECK(bytes("optimizer_bytes") == cost.optimizer_bytes);
        // At 50 GB/s x 0.75 and 4.8 TB/s x 0.7.
        if (cost.parameter_bytes > 0) {
          CHECK(Ticks(layer, "reduce") ==
                std::llround(static_cast<double>(cost.gradient_bytes) * 2 / 37.5));
          CHECK(Ticks(layer, "step") ==
                std::llround(static_cast<double>(cost.parameter_bytes) * 15 / 3360));
        }
        CHECK(bytes("activation_bytes") == cost.activation_bytes);
        CHECK(bytes("w_stash_bytes") == cost.w_stash_bytes);
        CHECK(bytes("output_bytes") == cost.output_bytes);
        CHECK(cost.w_stash_bytes <= cost.activation_bytes);
        const char* const form = cost.work.exchanges ? "moe" : "dense";
        REQUIRE(layer.Optional("f").has_value() != cost.components.has_value());
        if (!cost.components) {
          CHECK(Ticks(layer, "f") == cost.f);
          CHECK(Ticks(layer, "b") == cost.b);
          CHECK(Ticks(layer, "w") == cost.w);
          continue;
        }
        const JsonCursor given = layer.Required(form);
        const MoeCost& part = *cost.components;
        for (const ComponentCost& component : kComponentCosts) {
          const bool has = Has(part.KindOf(0), component.op);
          REQUIRE(given.Optional(component.key).has_value() == has);
          if (has) CHECK(Ticks(given, component.key) == (part.*component.times)[0]);
        }
        CHECK(part.attn_f[0] + part.mlp_f[0] == cost.f);
        CHECK(part.attn_b[0] + part.mlp_b[0] == cost.b);
        CHECK(part.attn_w[0] + part.mlp_w[0] == cost.w);
      }
      CHECK(of_model == model.layers.size());
      // The reader of cost files takes all of it.
      const CostModel read = ReadCosts(text, "costs.json");
      CHECK(read.parallel == setup.parallel());
      CHECK(read.gpu == GpuCost{"h200", 141'000'000'000});
      CHECK(read.tokens == 4096);
      REQUIRE(read.layers.size() == costs.layers.size());
      for (size_t i = 0; i < costs.layers.size(); ++i) {
        const LayerEstimate& cost = costs.layers[i];
        const LayerCost& layer = read.layers[i];
        CHECK(layer.repeat == cost.repeat);
        CHECK(layer.tied == cost.tied);
        CHECK(layer.moe == cost.components);
        CHECK(layer.cost.f == (cost.components ? 0 : cost.f));
        CHECK(layer.parameter_bytes == cost.parameter_bytes);
        CHECK(layer.activation_bytes == cost.activation_bytes);
        CHECK(layer.output_bytes == cost.output_bytes);
      }
      CHECK(text == Write(PublishedModel(name), setup));
    }
  }

  TEST_CASE("costs file: a plan is made of it") {
    for (const char* name : {"deepseek-v3", "gemma-2-9b", "llama-3.1-8b"}) {
      CAPTURE(name);
      const ModelShape model = PublishedModel(name);
      CostSetup setup = SetupOn("h200");
      setup.expert_parallel = model.has_experts() ? 8 : 1;
      const CostModel costs = ReadCosts(Write(model, setup), "costs.json");
      const Plan plan = Compile(MakeSpec("1f1b", 4, 8, costs), {.level = Level::kComm});
      CHECK(Verify(plan).empty());
      CHECK(std::accumulate(plan.costs->partition.begin(), plan.costs->partition.end(), 0) ==
            costs.LayerCount());
      Time work = 0;
      for (const LayerEstimate& layer : CostsOf(model, setup).layers) {
        work += layer.repeat * (layer.f + layer.b + layer.w);
      }
      // Four ranks, eight micro-batches and what fills and drains between them.
      const Time makespan = Simulate(plan, *plan.costs).makespan;
      CHECK(makespan > 8 * work / 4);
      CHECK(makespan < 8 * work);
    }
    // The embedding's matrix is that of the head, of which the first stage needs a copy.
    const ModelShape gemma = PublishedModel("gemma-2-9b");
    const CostModel costs = ReadCosts(Write(gemma, SetupOn("h200")), "costs.json");
    const Plan plan = Compile(MakeSpec("1f1b", 4, 8, costs), {.level = Level::kComm});
    const std::vector<int64_t>& bytes = plan.costs->memory->parameter_bytes;
    const int64_t copy = 2 * (int64_t{256000} * 3584 + 3584);
    CHECK(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) == 2 * 9'241'705'984 + copy);
  }

  TEST_CASE("costs file: comments show the arithmetic of every part") {
    const ModelShape model = PublishedModel("llama-3.1-8b");
    CostSetup setup = SetupOn("h100");
    const std::string text = Write(model, setup);
    const auto has = [&](const std::string& line) { return Contains(text, line); };
    CHECK(has("8,030,261,248 parameters"));
    // 481 GFLOP at 989.5 TFLOP/s times 0.65 take 747.909 us, twice as many twice that.
    CHECK(has("2 x 4096 x 14336 x 4096 = 481 GFLOP"));
    CHECK(has("2 x 4096 x 4096 x 28672 = 962.1 GFLOP"));
    CHECK(has("1495.818, 1495.818, 1495.818"));
    CHECK(has("efficiency matmul 0.65, experts 0.55,"));
    setup.efficiency[static_cast<size_t>(WorkKind::kMatmul)] = 0.325;
    CHECK(Contains(Write(model, setup), "2991.636, 2991.636, 2991.636"));
    // Every layer kind is explained once, however often it comes.
    const std::string gemma = Write(PublishedModel("gemma-2-9b"), setup);
    size_t tables = 0;
    for (size_t at = 0; (at = gemma.find("// part ", at)) != std::string::npos; ++at) ++tables;
    CHECK(tables == 4);
  }

  TEST_CASE("costs file: the template has every key, and is a document") {
    const std::string text = CostsTemplate();
    const CostModel costs = ReadCosts(text, "template.json");
    CHECK(costs.layers.size() == 4);
    CHECK(costs.LayerCount() == 10);
    const JsonDocument document = Parse(text);
    const JsonCursor layers = document.Root().Required("layers");
    REQUIRE(layers.Size("layers") == 4);
    for (size_t i = 0; i < 4; ++i) {
      for (const char* bytes : {"parameter_bytes", "gradient_bytes", "optimizer_bytes",
                                "activation_bytes", "w_stash_bytes", "output_bytes"}) {
        CHECK(layers.Item(i).Required(bytes).Integer("bytes", 0, int64_t{1} << 32) >= 0);
      }
      CHECK(layers.Item(i).Required("w_stash_bytes").Integer("bytes", 0, 1 << 30) <=
            layers.Item(i).Required("activation_bytes").Integer("bytes", 0, 1 << 30));
    }
    for (const char* key : {"\"tied\"", "\"bw\"", "\"fb\"", "\"r\"", "\"reduce\"", "\"step\"",
                            "\"repeat\"", "\"time\"", "\"latency\""}) {
      CHECK(Contains(text, key));
    }
  }
}

}  // namespace
}  // namespace contraflow::costs_file_test
