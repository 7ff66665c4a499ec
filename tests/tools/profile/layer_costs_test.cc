#include "tools/profile/layer_costs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/files/profiles.h"
#include "tests/support/failure.h"
#include "tests/tools/profile/profile_support.h"

namespace contraflow::layer_costs_test {
namespace {

CostSetup DeepSeekSetup() {
  CostSetup setup = SetupOn("h800");
  setup.expert_parallel = 64;
  setup.fp8 = true;
  setup.efficiency = DefaultEfficiencies(true);
  return setup;
}

/// FLOPs of all parts.
struct Flops {
  double f = 0, b = 0, w = 0;
};
Flops FlopsOf(const WorkOfLayer& work) {
  Flops sum;
  for (const LayerPart& part : work.parts) {
    sum.f += part.f.flops;
    sum.b += part.b.flops;
    sum.w += part.w.flops;
  }
  return sum;
}

const LayerPart& PartNamed(const WorkOfLayer& work, const std::string& name) {
  for (const LayerPart& part : work.parts) {
    if (part.name == name) return part;
  }
  throw Error("no part " + name);
}

CostModel Profile(const char* name) {
  return ReadCostFile(CF_TEST_DIR "/../tools/profiles/" + std::string(name) + ".json");
}

std::string Refused(const std::string& model, const std::function<void(CostSetup*)>& change) {
  CostSetup setup = SetupOn("h100");
  change(&setup);
  return Failure([&] { CostsOf(PublishedModel(model), setup); });
}

TEST_SUITE("unit") {
  TEST_CASE("layer costs: components are within 15 % of those of DeepSeek's training trace") {
    // One efficiency for each kind of work: the defaults of fp8, which were fitted to this trace.
    // attn_b is 13 % short: DeepSeek makes the norms and projections of latents again there.
    const ModelCosts costs = CostsOf(PublishedModel("deepseek-v3"), DeepSeekSetup());
    const MoeCost& estimated = *LayerNamed(costs, "moe").moe;
    const CostModel measured = Profile("deepseek-v3-h800");
    REQUIRE(measured.unit == Unit::kMicroseconds);
    for (const ComponentCost& component : kComponentCosts) {
      CAPTURE(component.key);
      const auto trace = static_cast<double>(((*measured.moe).*component.times)[0]);
      const auto estimate = static_cast<double>((estimated.*component.times)[0]);
      CHECK(std::abs(estimate / trace - 1) < 0.15);
    }
    // What is fitted to each of them is within 5 % of all of them together.
    CHECK(std::abs(static_cast<double>(SerialSum(estimated)) * 4 /
                       static_cast<double>(SerialSum(*measured.moe)) -
                   1) < 0.05);
  }

  TEST_CASE("layer costs: work in matmuls and attention is that of the profiles that ship") {
    // These count it by hand, all layers of a model alike and rounded to three digits.
    struct Row {
      const char* profile;
      ModelShape model;
      int64_t sequence;
    };
    ModelShape gpt3;
    gpt3.hidden = 12288;
    gpt3.vocabulary = 50257;
    gpt3.attention = {.heads = 96, .kv_heads = 96, .head_dim = 128, .value_dim = 128};
    gpt3.dense_width =
        32768;  // three matrices of this have the work of two of four times the width
    gpt3.layers.resize(96);
    ModelShape kimi = PublishedModel("deepseek-v3");
    kimi.attention.heads = kimi.attention.kv_heads = 64;
    kimi.moe.experts = 384;
    kimi.vocabulary = 163840;
    ModelShape mixtral = PublishedModel("mixtral-8x7b");
    mixtral.hidden = 6144;
    mixtral.attention.heads = 48;
    mixtral.moe.width = 16384;
    ModelShape gemma = PublishedModel("gemma-2-9b");
    gemma.layers.back().window = 0;
    const Row rows[] = {
        {"llama-3-405b-pp16", PublishedModel("llama-3.1-405b"), 8192},
        {"mixtral-8x7b-pp8", PublishedModel("mixtral-8x7b"), 4096},
        {"mixtral-8x22b-pp8", mixtral, 4096},
        {"gpt3-175b-pp16", gpt3, 2048},
        {"gemma-2-9b-pp8", gemma, 8192},
        {"deepseek-v3-pp16", PublishedModel("deepseek-v3"), 4096},
        {"kimi-k2-pp16", kimi, 4096},
    };
    for (const Row& row : rows) {
      CAPTURE(row.profile);
      CostSetup setup = SetupOn("h100");
      setup.sequence = row.sequence;
      WorkOfLayer layer = BlockWork(row.model, setup, row.model.layers.back());
      // The router is not in the profiles: at most a hundredth of a layer.
      const Flops flops = FlopsOf(layer);
      ModelShape without = row.model;
      without.predictions = 0;
      const double head = FlopsOf(HeadWork(without, setup)).f / flops.f;
      const CostModel profile = Profile(row.profile);
      const StageCost& block = profile.layers[1].cost;
      const auto f = static_cast<double>(block.f);
      CHECK(flops.b / flops.f == doctest::Approx(static_cast<double>(block.b) / f).epsilon(0.002));
      CHECK(flops.w / flops.f == doctest::Approx(static_cast<double>(block.w) / f).epsilon(0.002));
      const auto last = static_cast<double>(profile.layers.back().cost.f);
      CHECK(head == doctest::Approx(last / f).epsilon(0.02));
      CHECK(profile.LayerCount() >= static_cast<int>(row.model.layers.size()) + 2);
    }
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
      const CostModel profile = Profile(row.profile);
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

  TEST_CASE("layer costs: a window leaves a query the keys before it up to the window") {
    const ModelShape model = PublishedModel("gpt-oss-120b");
    for (const int64_t sequence : {1, 2, 64, 127, 128, 129, 200, 4096}) {
      CAPTURE(sequence);
      CostSetup setup = SetupOn("h100");
      setup.sequence = sequence;
      setup.micro_batch = 3;
      for (const int64_t window : {int64_t{0}, int64_t{128}}) {
        CAPTURE(window);
        // Half of the key at the query's own place, as where scores are cut along the diagonal.
        double keys = 0;
        for (int64_t q = 0; q < sequence; ++q) {
          keys += window == 0 || q < window ? static_cast<double>(q) + 0.5
                                            : static_cast<double>(window);
        }
        const WorkOfLayer work = BlockWork(model, setup, {.window = window, .moe = true});
        const LayerPart& attention = PartNamed(work, "attention");
        CHECK(attention.f.flops == doctest::Approx(2.0 * 3 * keys * 64 * (64 + 64)));
        CHECK(attention.b.flops == 2.5 * attention.f.flops);
        CHECK(attention.w.flops == 0);
      }
    }
  }

  TEST_CASE("layer costs: parameters and work are split over devices") {
    const ModelShape model = PublishedModel("llama-3.1-8b");
    const double norms = (2 * 32 + 1) * 4096;
    for (const int64_t tp : {1, 2, 8}) {
      CAPTURE(tp);
      CostSetup setup = SetupOn("h100");
      setup.tensor_parallel = tp;
      const ModelCosts costs = CostsOf(model, setup);
      const auto parts = static_cast<double>(tp);
      CHECK(costs.parameters == (8'030'261'248 - norms) / parts + norms);
      const LayerEstimate& layer = LayerNamed(costs, "dense");
      CHECK(layer.parameter_bytes == 2 * layer.work.parameters);
      CHECK(layer.gradient_bytes == 4 * layer.work.parameters);
      CHECK(layer.optimizer_bytes == 12 * layer.work.parameters);
      const Flops whole = FlopsOf(BlockWork(model, SetupOn("h100"), {}));
      CHECK(FlopsOf(layer.work).f == whole.f / parts);
      CHECK(FlopsOf(layer.work).b == whole.b / parts);
      CHECK(FlopsOf(layer.work).w == whole.w / parts);
      CHECK(layer.output_bytes == 4096 * 4096 * 2 / tp);
    }
    // Of 8 key-value heads, 16 devices have one each: two copies of each.
    const ModelShape large = PublishedModel("llama-3.1-70b");
    CostSetup setup = SetupOn("h100");
    setup.tensor_parallel = 16;
    const LayerEstimate layer = LayerNamed(CostsOf(large, setup), "dense");
    CHECK(layer.work.parameters ==
          8192 * (64 / 16 + 2 + 64 / 16) * 128 + 3 * 8192 * 28672 / 16 + 2 * 8192);
    const ModelShape deepseek = PublishedModel("deepseek-v3");
    const double expert = 3 * 7168 * 2048;
    const LayerEstimate spread = LayerNamed(CostsOf(deepseek, DeepSeekSetup()), "moe");
    CostSetup one = DeepSeekSetup();
    one.expert_parallel = 1;
    const LayerEstimate alone = LayerNamed(CostsOf(deepseek, one), "moe");
    CHECK(alone.work.parameters - spread.work.parameters == (256 - 4) * expert);
    CHECK(FlopsOf(alone.work).f == FlopsOf(spread.work).f);
    CHECK(spread.moe.has_value());
    CHECK(!alone.moe.has_value());
  }

  TEST_CASE("layer costs: bytes of activations by hand") {
    // 8192 tokens of 4096; 32 heads of 128 and 8 for keys and values; MLP of 14336.
    CostSetup setup = SetupOn("h100");
    setup.sequence = 8192;
    const ModelShape model = PublishedModel("llama-3.1-8b");
    const ModelCosts costs = CostsOf(model, setup);
    const LayerEstimate& layer = LayerNamed(costs, "dense");
    constexpr int64_t kTokens = 8192, kWide = 4096 * 2, kSums = 32 * 4, kQkv = 48 * 128 * 2;
    const int64_t kept_to_w = 2 * kWide + kWide + 14336 * 2;  // both normed, attention, hidden
    const int64_t kept_to_b = 2 * kWide + kQkv + kSums + 2 * 14336 * 2;
    CHECK(layer.activation_bytes == kTokens * (kept_to_w + kept_to_b));
    const int64_t gradients = kQkv + kWide + 2 * 14336 * 2 + kWide;
    CHECK(layer.w_stash_bytes == kTokens * (kept_to_w + gradients));
    // No part of it grows with the square of the sequence.
    setup.sequence = 16384;
    CHECK(LayerNamed(CostsOf(model, setup), "dense").activation_bytes ==
          2 * layer.activation_bytes);
    const LayerEstimate& head = LayerNamed(costs, "head");
    CHECK(head.activation_bytes == kTokens * (2 * kWide + 128256 * 4));
    CHECK(head.w_stash_bytes == kTokens * (kWide + 128256 * 2));
    CHECK(costs.message.bytes == kTokens * kWide);
    // The matrix is one, and the head has it.
    const ModelCosts tied = CostsOf(PublishedModel("gemma-2-9b"), setup);
    CHECK(tied.layers.front().tied == "head");
    CHECK(tied.layers.front().parameter_bytes == 0);
    CHECK(costs.layers.front().tied == "");
    CHECK(costs.layers.front().parameter_bytes == 128256 * kWide);
  }

  TEST_CASE("layer costs: bytes of an all-to-all") {
    const ModelShape deepseek = PublishedModel("deepseek-v3");
    const double token = 4096.0 * 7168;
    // Eight nodes, of which a token goes to four at most; its own is one in eight.
    const WorkOfLayer spread = BlockWork(deepseek, DeepSeekSetup(), {.moe = true});
    CHECK(spread.dispatch.network_bytes == token * 4 * 7 / 8);
    CHECK(spread.combine.network_bytes == token * 2 * 4 * 7 / 8);
    CHECK(spread.dispatch.nvlink_bytes == token * 8 * 7 / 8);
    // Without groups, a copy for each expert.
    ModelShape free = deepseek;
    free.moe.top_groups = free.moe.groups;
    CHECK(BlockWork(free, DeepSeekSetup(), {.moe = true}).dispatch.network_bytes ==
          token * 8 * 7 / 8);
    CostSetup node = DeepSeekSetup();
    node.expert_parallel = 4;
    node.fp8 = false;
    const WorkOfLayer near = BlockWork(deepseek, node, {.moe = true});
    CHECK(near.dispatch.network_bytes == 0);
    CHECK(near.dispatch.nvlink_bytes == token * 2 * 8 * 3 / 4);
    CHECK(near.combine.nvlink_bytes == near.dispatch.nvlink_bytes);
    // The slower link counts.
    CostSetup exact = DeepSeekSetup();
    exact.efficiency[static_cast<size_t>(WorkKind::kAllToAll)] = 1;
    CHECK(TransferTime({50e3, 200e3, ""}, exact) == 1000);
    CHECK(TransferTime({50e3, 400e3, ""}, exact) == 2000);
    CHECK(TransferTime({150e3, 400e3, ""}, exact) == 3000);
    // Latency and wait come on top, and are all there is of nothing.
    exact.wait = 0;
    const MoeCost moe = *LayerNamed(CostsOf(deepseek, exact), "moe").moe;
    CHECK(moe.dispatch_f[0] == kNetworkLatency + TransferTime(spread.dispatch, exact));
    CHECK(moe.combine_b == moe.dispatch_f);
    CHECK(moe.dispatch_b == moe.combine_f);
    exact.wait = 0.5;
    const LayerEstimate waits = LayerNamed(CostsOf(deepseek, exact), "moe");
    CHECK(waits.moe->dispatch_f[0] - moe.dispatch_f[0] ==
          std::llround(0.5 * static_cast<double>(waits.f + waits.b + waits.w)));
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
    CHECK(std::count_if(single.times.begin(), single.times.end(),
                        [](const PartTime& time) { return time.memory_bound; }) == 5);
    for (size_t i = 0; i < single.times.size(); ++i) {
      const LayerPart& part = single.work.parts[i];
      CHECK(single.times[i].f == TicksOf(part.f.bytes / 3.35e12));
      CHECK(single.times[i].w == TicksOf(part.w.bytes / 3.35e12));
    }
  }

  TEST_CASE("layer costs: bytes of a matmul by hand") {
    const double rows = 4096, in = 4096, out = 28672;
    CostSetup setup = SetupOn("h100");
    const ModelShape model = PublishedModel("llama-3.1-8b");
    const WorkOfLayer in_bf16 = BlockWork(model, setup, {});
    const LayerPart& bf16 = PartNamed(in_bf16, "gate, up");
    CHECK(bf16.f.bytes == 2 * (rows * in + in * out + rows * out));
    CHECK(bf16.b.bytes == 2 * (rows * in + in * out + rows * out));
    // Its gradient is read and written in fp32.
    CHECK(bf16.w.bytes == 2 * (rows * in + rows * out) + 8 * in * out);
    setup.fp8 = true;
    const WorkOfLayer in_fp8 = BlockWork(model, setup, {});
    const LayerPart& fp8 = PartNamed(in_fp8, "gate, up");
    CHECK(fp8.f.bytes == rows * in + in * out + 2 * rows * out);
    CHECK(fp8.b.bytes == rows * out + in * out + 2 * rows * in);
    CHECK(fp8.w.bytes == rows * in + rows * out + 8 * in * out);
    // Casts, of the second half: in and hidden forward, gradients of out and down's backward.
    CHECK(in_fp8.parts.back().name == "casts to fp8");
    CHECK(in_fp8.parts.back().f.bytes == 3 * rows * (in + 14336));
    CHECK(in_fp8.parts.back().b.bytes == 3 * rows * (out + 4096));
    CHECK(in_fp8.parts.back().w.bytes == 2 * rows * (in + out + 14336 + 4096));
    CHECK(in_bf16.parts.back().name == "down");
  }

  TEST_CASE("layer costs: the head is passed once more for each prediction module") {
    ModelShape model = PublishedModel("deepseek-v3");
    const CostSetup setup = DeepSeekSetup();
    const WorkOfLayer twice = HeadWork(model, setup);
    model.predictions = 0;
    const WorkOfLayer once = HeadWork(model, setup);
    CHECK(FlopsOf(once).f == 2.0 * 4096 * 7168 * 129280);
    CHECK(FlopsOf(twice).f == 2 * FlopsOf(once).f);
    CHECK(twice.parameters == once.parameters);
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
    CHECK(mtp.moe->attn_f[0] > LayerNamed(deepseek, "moe").moe->attn_f[0]);
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
    odd.moe.width = 2888;
    CostSetup wide = SetupOn("h100");
    wide.tensor_parallel = 16;
    CHECK(Failure([&] { CostsOf(odd, wide); }) ==
          "`tp`: must divide the 2888 columns of the model's experts, is 16");
    odd.attention.kv_heads = 6;
    odd.attention.heads = 12;
    CostSetup setup = SetupOn("h100");
    setup.tensor_parallel = 4;
    CHECK(Failure([&] { CostsOf(odd, setup); }) ==
          "`tp`: must divide the 6 key-value heads of the model, or be a multiple of them, is 4");
  }

  TEST_CASE("layer costs: the largest config there may be ends in an error and not in nonsense") {
    const std::string huge =
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 1048576, \"intermediate_size\": "
        "1048576, "
        "\"vocab_size\": 16777216, \"num_attention_heads\": 4096, \"num_hidden_layers\": 2048, "
        "\"qk_rope_head_dim\": 1048576, \"qk_nope_head_dim\": 1048576, \"v_head_dim\": 1048576, "
        "\"q_lora_rank\": 1048576, \"kv_lora_rank\": 1048576, \"n_routed_experts\": 16384, "
        "\"num_experts_per_tok\": 16384, \"moe_intermediate_size\": 1048576, "
        "\"n_shared_experts\": 64, \"num_nextn_predict_layers\": 16}";
    CostSetup setup = SetupOn("b200");
    setup.sequence = 1 << 24;
    CHECK(Failure([&] { CostsOf(ReadHfConfig(huge, "c.json"), setup); }) ==
          "layer \"embedding\": more than 1099511627776 bytes of parameters on one device; use a "
          "smaller `seq` or `micro_batch`, or a larger `tp` or `ep`");
    CHECK(ParametersOf(ReadHfConfig(huge, "c.json")).model > 0x1p66);
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
    CHECK(Failure([] { FindGpu("h10"); }) ==
          "unknown GPU \"h10\" (did you mean \"h100\"?); known are: a100, b200, h100, h200, h800");
    CHECK(Failure([] { FindGpu("H1O0"); }) ==
          "unknown GPU \"H1O0\" (did you mean \"h100\"?); known are: a100, b200, h100, h200, h800");
    CHECK(FindGpu("H100").name == "h100");
    for (const GpuSheet& gpu : GpuSheets()) {
      CHECK(&FindGpu(gpu.name) == &gpu);
      CHECK(!gpu.source.empty());
      CHECK((gpu.fp8 == 0 || gpu.fp8 == 2 * gpu.bf16));
    }
  }
}

}  // namespace
}  // namespace contraflow::layer_costs_test
