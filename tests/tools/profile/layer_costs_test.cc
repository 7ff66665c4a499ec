#include "tools/profile/layer_costs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/files/profiles.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/value.h"
#include "tests/support/failure.h"
#include "tests/tools/profile/profile_support.h"
#include "tools/profile/costs_file.h"

namespace contraflow::layer_costs_test {
namespace {

std::string Refused(const std::string& model, const std::function<void(CostSetup*)>& change) {
  CostSetup setup = SetupOn("h100");
  change(&setup);
  return Failure([&] { CostsOf(PublishedModel(model), setup); });
}

TEST_SUITE("unit") {
  TEST_CASE("layer costs: components are within 15 % of those of DeepSeek's training trace") {
    // One efficiency for each kind of work.
    // attn_b is 13 % short: DeepSeek makes the norms and projections of latents again there.
    const ModelCosts costs = CostsOf(PublishedModel("deepseek-v3"), DeepSeekSetup());
    const MoeCost& estimated = *LayerNamed(costs, "moe").components;
    const CostModel measured = ShippedProfile("deepseek-v3-h800");
    REQUIRE(measured.unit == Unit::kMicroseconds);
    for (const ComponentCost& component : kComponentCosts) {
      CAPTURE(component.key);
      const auto trace = static_cast<double>(((*measured.moe).*component.times)[0]);
      const auto estimate = static_cast<double>((estimated.*component.times)[0]);
      CHECK(std::abs(estimate / trace - 1) < 0.15);
    }
    // The fit to each of them is within 5 % of all of them together.
    CHECK(std::abs(static_cast<double>(SerialSum(estimated)) * 4 /
                       static_cast<double>(SerialSum(*measured.moe)) -
                   1) < 0.05);
  }

  TEST_CASE("layer costs: the values of a layer are its activation, whoever makes it") {
    for (const char* name : {"deepseek-v3", "mixtral-8x7b", "llama-3.1-8b"}) {
      for (const int64_t ep : {1, 8}) {
        const ModelShape model = PublishedModel(name);
        CostSetup setup = SetupOn("h100");
        setup.expert_parallel = model.has_experts() ? ep : 1;
        const ModelCosts costs = CostsOf(model, setup);
        // The file is read as it was written.
        const CostModel read = ReadCosts(WriteCostsByLayer(model, setup, costs), "c.json");
        for (size_t i = 0; i < costs.layers.size(); ++i) {
          const LayerEstimate& layer = costs.layers[i];
          CAPTURE(layer.name);
          REQUIRE(layer.components.has_value() == layer.work.halves);
          if (!layer.components) continue;
          const ValueBytes& values = layer.components->values[0];
          int64_t sum = 0, to_w = 0, of_w = 0;
          for (const Value v : kActivationOfLayer) {
            const int64_t bytes = values[static_cast<size_t>(v)];
            sum += bytes;
            if (ArenaOf(v) == Arena::kStash) to_w += bytes;
          }
          for (const Kept& kept : layer.work.kept) {
            if (kept.until == KeptUntil::kW) of_w += static_cast<int64_t>(kept.bytes);
          }
          CHECK(to_w == of_w);
          // The two inputs of a prediction module stay.
          const bool predicts = layer.name.starts_with("mtp");
          const int64_t stays = predicts ? setup.tokens() * 2 * model.hidden * 2 : 0;
          CHECK(sum == layer.activation_bytes - stays);
          CHECK(read.layers[i].moe->values == layer.components->values);
          // Computed by hand: a row a token and expert, of it the gated and the hidden width; rows
          // from no other device are part of the hidden.
          const bool moe = layer.name.starts_with("moe") || predicts;
          const auto of = [&](Value v) { return values[static_cast<size_t>(v)]; };
          const LayerShape& of_layer = moe ? model.layers.back() : model.layers.front();
          const int64_t rows = moe ? setup.tokens() * of_layer.moe.top_k : 0;
          const int64_t inputs = rows * model.hidden * 2;
          const int64_t hidden =
              2 * (moe ? rows * of_layer.moe.width + setup.tokens() * of_layer.moe.shared_width
                       : setup.tokens() * of_layer.dense_width);
          CHECK(of(Value::rows) == (layer.work.exchanges ? inputs : 0));
          CHECK(of(Value::hidden) == hidden + (layer.work.exchanges ? 0 : inputs));
          CHECK(of(Value::gate) == 2 * hidden);
        }
      }
    }
  }

  TEST_CASE("layer costs: a run in a node sends over its links, and tp beside matmuls less") {
    const ModelShape model = PublishedModel("llama-3.1-8b");
    CostSetup setup = SetupOn("h100");
    setup.tensor_parallel = 4;
    const ModelCosts far = CostsOf(model, setup);
    setup.gpus = setup.stage_gpus = 8;
    const ModelCosts near = CostsOf(model, setup);
    CHECK(near.message.latency == kNodeLatency);
    CHECK(near.message.bandwidth == doctest::Approx(9 * far.message.bandwidth));
    CHECK(static_cast<double>(far.layers[1].reduce) ==
          doctest::Approx(9.0 * static_cast<double>(near.layers[1].reduce)));
    setup.gpus = 16;  // two stages, each in a node of its own
    CHECK(CostsOf(model, setup).message.latency == kNetworkLatency);
    CHECK(CostsOf(model, setup).layers[1].reduce == near.layers[1].reduce);
    setup.tp_overlap = true;
    const LayerEstimate hidden = CostsOf(model, setup).layers[1];
    Time saved = 0;
    for (size_t i = 0; i < hidden.times.size(); ++i) {
      if (hidden.work.parts[i].kind != WorkKind::kTensorParallel) continue;
      const auto shown = static_cast<double>(near.layers[1].times[i].f - kNodeLatency);
      CHECK(static_cast<double>(hidden.times[i].f - kNodeLatency) ==
            doctest::Approx(shown / 4).epsilon(1e-4));
      saved += near.layers[1].times[i].f - hidden.times[i].f;
    }
    CHECK(saved > 0);
    CHECK(near.layers[1].f - hidden.f == saved);
  }

  TEST_CASE("layer costs: fp8 is as much faster than bf16 as is published") {
    const auto time = [](const char* gpu, int64_t tp, int64_t sequence, bool fp8, bool attention) {
      CostSetup setup = SetupOn(gpu);
      setup.tensor_parallel = tp;
      setup.sequence = sequence;
      setup.fp8 = fp8;
      setup.efficiency = DefaultEfficiencies(fp8);
      const LayerEstimate layer =
          LayerNamed(CostsOf(PublishedModel("llama-3.1-70b"), setup), "dense");
      if (!attention) return static_cast<double>(layer.f + layer.b + layer.w);
      size_t part = 0;
      while (layer.work.parts[part].name != "attention") ++part;
      return static_cast<double>(layer.times[part].f + layer.times[part].b);
    };
    for (const char* gpu : {"h100", "h200", "b300"}) {
      for (const auto& [tp, sequence] : {std::pair(1, 8192), {2, 8192}, {4, 4096}}) {
        CAPTURE(gpu);
        CAPTURE(tp);
        CAPTURE(sequence);
        const double gain =
            time(gpu, tp, sequence, false, false) / time(gpu, tp, sequence, true, false);
        CHECK(gain > 1.3);
        CHECK(gain < 1.45);
        CHECK(time(gpu, tp, sequence, false, true) == time(gpu, tp, sequence, true, true));
      }
    }
  }

  TEST_CASE(
      "layer costs: scales of fp8 are read with the values, and mx casts the other axis from "
      "bf16") {
    const auto layer = [](const char* recipe) {
      CostSetup setup = SetupOn("b200");
      setup.fp8 = true;
      setup.recipe = &FindFp8Recipe(recipe);
      return LayerNamed(CostsOf(PublishedModel("llama-3.1-70b"), setup), "dense");
    };
    const auto part = [&](const char* recipe, const std::string& name) {
      const std::vector<LayerPart> parts = layer(recipe).work.parts;
      return *std::ranges::find(parts, name, &LayerPart::name);
    };
    // 4,096 rows of 8,192, by a matrix of 8,192 x 8,192, to rows in bf16.
    const double read = 4096.0 * 8192 + 8192.0 * 8192, written = 2 * 4096.0 * 8192;
    CHECK(part("tensor", "out").f.bytes == read + written);
    CHECK(part("block", "out").f.bytes == read * (1 + 4.0 / 128) + written);
    CHECK(part("mx", "out").f.bytes == read * (1 + 1.0 / 32) + written);
    const double cast = part("tensor", "casts to fp8").w.bytes;
    CHECK(part("block", "casts to fp8").w.bytes == cast);
    CHECK(part("mx", "casts to fp8").w.bytes == 1.5 * cast);
    CHECK(Failure([] { FindFp8Recipe("row"); }) ==
          "`fp8`: must be tensor, block or mx, is \"row\"");
  }

  TEST_CASE("layer costs: times keep the proportions of the profiles that ship") {
    // With the default efficiencies, and what passes over memory, which the profiles leave out: it
    // makes b and w less alike, and the head, of one large matmul, cheaper against the layers.
    const struct {
      const char *profile, *config, *layer;
      int64_t sequence;
      double tolerance, head_tolerance;
    } rows[] = {
        {"llama-3-405b-pp16", "llama-3.1-405b", "dense", 8192, 0.05, 0.05},
        {"mixtral-8x7b-pp8", "mixtral-8x7b", "moe", 4096, 0.1, 0.05},
        {"gemma-2-9b-pp8", "gemma-2-9b", "dense full 1", 8192, 0.15, 0.15},
    };
    for (const auto& row : rows) {
      CAPTURE(row.profile);
      CostSetup setup = SetupOn("h100");
      setup.sequence = row.sequence;
      const ModelCosts costs = CostsOf(PublishedModel(row.config), setup);
      const LayerEstimate& layer = LayerNamed(costs, row.layer);
      const CostModel profile = ShippedProfile(row.profile);
      const StageCost& block = profile.layers[1].cost;
      const auto ratio = [](Time a, Time b) {
        return static_cast<double>(a) / static_cast<double>(b);
      };
      CHECK(ratio(layer.b, layer.f) ==
            doctest::Approx(ratio(block.b, block.f)).epsilon(row.tolerance));
      CHECK(ratio(layer.w, layer.f) ==
            doctest::Approx(ratio(block.w, block.f)).epsilon(row.tolerance));
      CHECK(ratio(LayerNamed(costs, "head").f, layer.f) ==
            doctest::Approx(ratio(profile.layers.back().cost.f, block.f))
                .epsilon(row.head_tolerance));
    }
  }

  TEST_CASE("layer costs: a part takes as long as its work or its bytes") {
    CostSetup setup = SetupOn("h100");
    setup.efficiency.fill(1);
    const ModelShape model = PublishedModel("llama-3.1-8b");
    const LayerEstimate layer = LayerNamed(CostsOf(model, setup), "dense");
    Time f = 0, b = 0, w = 0;
    for (size_t i = 0; i < layer.times.size(); ++i) {
      const LayerPart& part = layer.work.parts[i];
      const PartTime& time = layer.times[i];
      CAPTURE(part.name);
      CHECK(!time.memory_bound);
      CHECK(time.f == TicksOf(std::max(part.f.flops / 989.5e12, part.f.bytes / 3.35e12)));
      CHECK(time.b == TicksOf(std::max(part.b.flops / 989.5e12, part.b.bytes / 3.35e12)));
      CHECK(time.w == TicksOf(std::max(part.w.flops / 989.5e12, part.w.bytes / 3.35e12)));
      f += time.f;
      b += time.b;
      w += time.w;
    }
    CHECK(layer.f == f);
    CHECK(layer.b == b);
    CHECK(layer.w == w);
    // Each kind of work follows its own efficiency.
    for (size_t kind = 0; kind < kWorkKinds; ++kind) {
      CAPTURE(Name(static_cast<WorkKind>(kind)));
      CostSetup half = setup;
      half.efficiency[kind] = 0.5;
      const ModelCosts slower = CostsOf(model, half);
      const LayerEstimate& other = LayerNamed(slower, "dense");
      for (size_t i = 0; i < layer.times.size(); ++i) {
        if (layer.times[i].memory_bound || other.times[i].memory_bound) continue;
        const bool same = layer.work.parts[i].kind == static_cast<WorkKind>(kind);
        CHECK(std::abs(other.times[i].f - (same ? 2 : 1) * layer.times[i].f) <= 1);
      }
      CHECK((LayerNamed(slower, "head").f > LayerNamed(CostsOf(model, setup), "head").f) ==
            (static_cast<WorkKind>(kind) == WorkKind::kHead ||
             static_cast<WorkKind>(kind) == WorkKind::kMemory));
      CHECK(slower.message.bandwidth ==
            (static_cast<WorkKind>(kind) == WorkKind::kP2p ? 25'000 : 50'000));
    }
    // A token at a time, matmuls wait for their weights.
    setup.sequence = 1;
    const LayerEstimate single = LayerNamed(CostsOf(model, setup), "dense");
    CHECK(std::ranges::count_if(single.times,
                                [](const PartTime& time) { return time.memory_bound; }) == 5);
    for (size_t i = 0; i < single.times.size(); ++i) {
      const LayerPart& part = single.work.parts[i];
      CHECK(single.times[i].f == TicksOf(part.f.bytes / 3.35e12));
      CHECK(single.times[i].w == TicksOf(part.w.bytes / 3.35e12));
    }
  }

  TEST_CASE("layer costs: layers alike that follow each other are one entry") {
    const ModelCosts deepseek = CostsOf(PublishedModel("deepseek-v3"), DeepSeekSetup());
    std::string names;
    for (const LayerEstimate& layer : deepseek.layers) {
      names += layer.name + " x" + std::to_string(layer.repeat) + " ";
    }
    CHECK(names == "embedding x1 dense x3 moe x58 mtp x1 head x1 ");
    const ModelCosts gemma = CostsOf(PublishedModel("gemma-2-9b"), SetupOn("a100"));
    CHECK(gemma.layers.size() == 44);
    CHECK(gemma.layers[1].name == "dense sliding 0");
    CHECK(gemma.layers[42].name == "dense full 41");
    // The module's message has its output and the model's.
    const LayerEstimate& mtp = LayerNamed(deepseek, "mtp");
    CHECK(mtp.output_bytes == 2 * LayerNamed(deepseek, "moe").output_bytes);
    CHECK(mtp.components->attn_f[0] > LayerNamed(deepseek, "moe").components->attn_f[0]);
  }

  TEST_CASE("layer costs: what does not fit the model or the GPU is refused") {
    const auto tp = [](int64_t parts) { return [=](CostSetup* s) { s->tensor_parallel = parts; }; };
    const auto ep = [](int64_t parts) { return [=](CostSetup* s) { s->expert_parallel = parts; }; };
    CHECK(Refused("llama-3.1-8b", tp(3)) ==
          "`tp`: must divide the 32 attention heads of the model, is 3");
    CHECK(Refused("llama-3.1-8b", ep(2)) ==
          "`ep`: the model has no experts to split; leave it out");
    CHECK(Refused("mixtral-8x7b", ep(3)) == "`ep`: must divide the 8 experts of the model, is 3");
    CHECK(Refused("llama-3.1-8b", [](CostSetup* s) {
            s->tensor_parallel = 8;
            s->sequence = 4;
          }) == "`tp`: must divide the 4 tokens of a micro-batch, is 8");
    CHECK(Refused("llama-3.1-8b", [](CostSetup* s) {
            s->sequence = 1 << 20;
            s->micro_batch = 17;
          }) == "`seq` times `micro_batch` must be at most 16777216 tokens");
    CHECK(Refused("llama-3.1-8b", [](CostSetup* s) {
            s->gpu = &FindGpu("a100");
            s->fp8 = true;
          }) == "`dtype`: the a100 has no fp8; use bf16");
    CHECK(Refused("llama-3.1-8b", [](CostSetup* s) {
            s->gpu = &FindGpu("h100");
            s->fp8 = true;
            s->recipe = &FindFp8Recipe("mx");
          }) == "`fp8`: the h100 multiplies no mx formats; use tensor or block");
    CHECK(Refused("gemma-2-9b", [](CostSetup* s) { s->sequence = 1 << 21; }) ==
          "layer \"head\": more than 1099511627776 bytes of activations on one device; use a "
          "smaller `seq` or `micro_batch`, or a larger `tp` or `ep`");
    CHECK(Refused("llama-3.1-8b",
                  [](CostSetup* s) {
                    s->sequence = 1 << 18;
                    s->efficiency.fill(1e-6);
                  }) ==
          "a part of a layer would take more than an hour; use a smaller `seq` or `micro_batch`, "
          "or higher efficiencies");
    ModelShape odd = PublishedModel("gpt-oss-120b");
    for (LayerShape& layer : odd.layers) layer.moe.width = 2888;
    CostSetup wide = SetupOn("h100");
    wide.tensor_parallel = wide.expert_tensor = 16;
    CHECK(Failure([&] { CostsOf(odd, wide); }) ==
          "`etp`: must divide the 2888 columns of the model's experts, is 16");
    for (LayerShape& layer : odd.layers) layer.attention.kv_heads = 6;
    for (LayerShape& layer : odd.layers) layer.attention.heads = 12;
    CostSetup setup = SetupOn("h100");
    setup.tensor_parallel = 4;
    CHECK(Failure([&] { CostsOf(odd, setup); }) ==
          "`tp`: must divide the 6 key-value heads of the model, or be a multiple of them, is 4");
  }

  TEST_CASE("layer costs: the largest config there may be ends in an error and not in nonsense") {
    const std::string huge =
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 1048576, \"intermediate_size\": "
        "1048576, \"vocab_size\": 16777216, \"num_attention_heads\": 4096, \"num_hidden_layers\": "
        "2048, \"qk_rope_head_dim\": 1048576, \"qk_nope_head_dim\": 1048576, \"v_head_dim\": "
        "1048576, \"q_lora_rank\": 1048576, \"kv_lora_rank\": 1048576, \"n_routed_experts\": "
        "16384, \"num_experts_per_tok\": 16384, \"moe_intermediate_size\": 1048576, "
        "\"n_shared_experts\": 64, \"num_nextn_predict_layers\": 16}";
    CostSetup setup = SetupOn("b200");
    setup.sequence = 1 << 24;
    CHECK(Failure([&] { CostsOf(ReadHfConfig(huge, "c.json"), setup); }) ==
          "layer \"embedding\": more than 1099511627776 bytes of parameters on one device; use a "
          "smaller `seq` or `micro_batch`, or a larger `tp` or `ep`");
    CHECK(ParametersOf(ReadHfConfig(huge, "c.json")).model > 0x1p66);
  }

  TEST_CASE("layer costs: devices that split a sequence share its work and hold all parameters") {
    for (const char* name : {"llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"}) {
      CAPTURE(name);
      const ModelShape model = PublishedModel(name);
      CostSetup whole = SetupOn("h100"), half = SetupOn("h100");
      whole.sequence = half.sequence = 32768;
      half.context_parallel = 2;
      const ModelCosts one = CostsOf(model, whole), two = CostsOf(model, half);
      for (size_t i = 0; i < one.layers.size(); ++i) {
        const LayerEstimate &a = one.layers[i], &b = two.layers[i];
        CHECK(a.parameter_bytes == b.parameter_bytes);
        CHECK(a.activation_bytes == 2 * b.activation_bytes);
        CHECK(a.output_bytes == 2 * b.output_bytes);
        // Alike but for reading the parameters.
        CHECK(a.f >= b.f);
        for (size_t p = 0; p < a.work.parts.size(); ++p) {
          CHECK(a.work.parts[p].f.flops == 2 * b.work.parts[p].f.flops);
          CHECK(a.work.parts[p].f.ring == 0);
        }
      }
    }
    // Keys and values of 16384 tokens, 8 heads of 128 each, from one device to the other.
    CostSetup setup = SetupOn("h100");
    setup.sequence = 32768;
    setup.context_parallel = 2;
    const auto attention = [&] {
      const ModelCosts costs = CostsOf(PublishedModel("llama-3.1-8b"), setup);
      const LayerEstimate& layer = LayerNamed(costs, "dense");
      for (size_t i = 0; i < layer.times.size(); ++i) {
        if (layer.work.parts[i].name == "attention") {
          CHECK(layer.work.parts[i].f.ring == 16384.0 * 2048 * 2);
          CHECK(layer.work.parts[i].b.ring == 2 * layer.work.parts[i].f.ring);
          return layer.times[i].f;
        }
      }
      return Time{0};
    };
    const Time hidden = attention();
    setup.efficiency[static_cast<size_t>(WorkKind::kP2p)] = 1e-4;
    CHECK(attention() > hidden);
    CHECK(attention() == kNodeLatency + TicksOf(16384.0 * 2048 * 2 / (450e9 * 1e-4)));
    setup.context_parallel = 3;
    CHECK(Failure([&] { CostsOf(PublishedModel("llama-3.1-8b"), setup); }) ==
          "`cp`: sequences of 32768 tokens do not divide into 2 x 3 parts");
    setup.context_parallel = 2;
    ModelShape linear = PublishedModel("llama-3.1-8b");
    linear.layers[3].linear = {.heads = 16, .value_dim = 64, .key_heads = 16, .key_dim = 64};
    CHECK(
        Failure([&] { CostsOf(linear, setup); }) ==
        "`cp`: the model has linear mixers, whose state passes from token to token; leave it out");
  }

  TEST_CASE("layer costs: each optimizer keeps its bytes of each parameter") {
    const ModelShape model = PublishedModel("llama-3.1-8b");
    CostSetup setup = SetupOn("h100");
    const ModelCosts adam = CostsOf(model, setup);
    for (const OptimizerSheet& optimizer : kOptimizers) {
      CAPTURE(optimizer.name);
      setup.optimizer = &FindOptimizer(optimizer.name);
      const ModelCosts costs = CostsOf(model, setup);
      for (size_t i = 0; i < costs.layers.size(); ++i) {
        const LayerEstimate& layer = costs.layers[i];
        const double parameters = layer.work.parameters, matrices = layer.work.matrix_parameters;
        CHECK(layer.parameter_bytes == adam.layers[i].parameter_bytes);
        CHECK(layer.gradient_bytes == static_cast<int64_t>(parameters) * optimizer.gradient);
        CHECK(layer.optimizer_bytes ==
              static_cast<int64_t>(matrices) * optimizer.of_matrices +
                  static_cast<int64_t>(parameters - matrices) * optimizer.of_others);
        CHECK(layer.f == adam.layers[i].f);
      }
      // All of a layer but its two norms are matrices, none of the embedding and the head.
      const LayerEstimate& layer = LayerNamed(costs, "dense");
      CHECK(layer.work.parameters - layer.work.matrix_parameters == 2 * 4096);
      CHECK(LayerNamed(costs, "head").work.matrix_parameters == 0);
      CHECK(LayerNamed(costs, "embedding").work.matrix_parameters == 0);
    }
    // 8 x 4096 x 4096 x 14336 and 2 x 4096^3 are the largest of five iterations.
    setup.optimizer = &FindOptimizer("muon");
    const WorkOfLayer work = BlockWork(model, setup, model.layers[0]);
    const auto iteration = [](double shorter, double longer) {
      return 4 * shorter * shorter * longer + 2 * shorter * shorter * shorter;
    };
    CHECK(work.orthogonal_flops == 5 * (iteration(4096, 6144) + iteration(4096, 4096) +
                                        iteration(4096, 28672) + iteration(4096, 14336)));
    CHECK(Failure([] { FindOptimizer("adamw"); }) ==
          "`optimizer`: must be one of adam, adam-bf16, adam-8bit, adam-all-bf16, muon, is "
          "\"adamw\"");
  }

  TEST_CASE("layer costs: frameworks keep more than kernels must") {
    const ModelShape model = PublishedModel("qwen3-235b-a22b");
    CostSetup setup = SetupOn("h100");
    const auto kept = [&](Activations activations, const char* layer) {
      setup.activations = activations;
      return LayerNamed(CostsOf(model, setup), layer).activation_bytes;
    };
    const int64_t tokens = 4096, rows = 8 * tokens;
    const int64_t block = kept(Activations::kIdeal, "moe"),
                  head = kept(Activations::kIdeal, "head");
    CHECK(kept(Activations::kMegatron, "moe") == block);
    CHECK(kept(Activations::kMegatron, "head") == head + tokens * 151936 * 2);
    CHECK(kept(Activations::kTorch, "moe") == block + rows * (1536 + 4096) * 2);
    CHECK(kept(Activations::kTorch, "head") == head + tokens * 151936 * 2);
    for (const Activations each :
         {Activations::kIdeal, Activations::kMegatron, Activations::kTorch}) {
      CHECK(ParseActivations(Name(each)) == each);
    }
    CHECK(Failure([] { ParseActivations("eager"); }) ==
          "`activations`: must be ideal, megatron or torch, is \"eager\"");
  }

  TEST_CASE("layer costs: efficiencies are read and refused") {
    Efficiencies shares = DefaultEfficiencies(false);
    ParseEfficiencies("matmul=0.25,all-to-all=1", &shares);
    CHECK(shares[static_cast<size_t>(WorkKind::kMatmul)] == 0.25);
    CHECK(shares[static_cast<size_t>(WorkKind::kAllToAll)] == 1);
    CHECK(shares[static_cast<size_t>(WorkKind::kHead)] ==
          DefaultEfficiencies(false)[static_cast<size_t>(WorkKind::kHead)]);
    const auto refused = [&](const char* text) {
      return Failure([&] { ParseEfficiencies(text, &shares); });
    };
    CHECK(refused("") == "must be KIND=X, as in \"matmul=0.6\", is \"\"");
    CHECK(refused("matmul=0.5,") == "must be KIND=X, as in \"matmul=0.6\", is \"\"");
    CHECK(refused("matmul") == "must be KIND=X, as in \"matmul=0.6\", is \"matmul\"");
    CHECK(refused("matmull=1") ==
          "unknown kind of work in \"matmull=1\" (did you mean \"matmul\"?); known are: matmul, "
          "experts, attention, head, memory, all-to-all, tensor-parallel, p2p");
    for (const char* bad : {"head=0", "head=1.01", "head=-1", "head=nan", "head=", "head=0.5x",
                            "head= 0.5", "head=1e-7"}) {
      CHECK(refused(bad) ==
            "the efficiency in \"" + std::string(bad) + "\" must be a share in 1e-6..1, as 0.6");
    }
  }
}

}  // namespace
}  // namespace contraflow::layer_costs_test
