#include "tools/profile/layer_work.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "compiler/files/profiles.h"
#include "compiler/plan/layer_cost.h"
#include "tests/tools/profile/profile_support.h"

namespace contraflow::layer_work_test {
namespace {

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

TEST_SUITE("unit") {
  TEST_CASE("layer work: work in matmuls and attention is that of the profiles that ship") {
    // These count it by hand, all layers of a model alike and rounded to three digits.
    struct Row {
      const char* profile;
      ModelShape model;
      int64_t sequence;
    };
    ModelShape gpt3;
    gpt3.hidden = 12288;
    gpt3.vocabulary = 50257;
    // Three matrices of this width have the work of two of four times the model's.
    gpt3.layers.assign(
        96, {.attention = {.heads = 96, .kv_heads = 96, .head_dim = 128, .value_dim = 128},
             .dense_width = 32768});
    ModelShape kimi = PublishedModel("deepseek-v3");
    for (LayerShape& layer : kimi.layers) {
      layer.attention.heads = layer.attention.kv_heads = 64;
      layer.moe.experts = 384;
    }
    kimi.vocabulary = 163840;
    ModelShape mixtral = PublishedModel("mixtral-8x7b");
    mixtral.hidden = 6144;
    for (LayerShape& layer : mixtral.layers) {
      layer.attention.heads = 48;
      layer.moe.width = 16384;
    }
    ModelShape gemma = PublishedModel("gemma-2-9b");
    gemma.layers.back().attention.window = 0;
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
      const CostModel profile = ShippedProfile(row.profile);
      const StageCost& block = profile.layers[1].cost;
      const auto f = static_cast<double>(block.f);
      CHECK(flops.b / flops.f == doctest::Approx(static_cast<double>(block.b) / f).epsilon(0.002));
      CHECK(flops.w / flops.f == doctest::Approx(static_cast<double>(block.w) / f).epsilon(0.002));
      const auto last = static_cast<double>(profile.layers.back().cost.f);
      CHECK(head == doctest::Approx(last / f).epsilon(0.02));
      CHECK(profile.LayerCount() >= static_cast<int>(row.model.layers.size()) + 2);
    }
  }

  TEST_CASE("layer work: a window leaves a query the keys before it up to the window") {
    const ModelShape model = PublishedModel("gpt-oss-120b");
    for (const int64_t sequence : {1, 2, 64, 127, 128, 129, 200, 4096}) {
      CAPTURE(sequence);
      CostSetup setup = SetupOn("h100");
      setup.sequence = sequence;
      setup.micro_batch = 3;
      for (const int64_t window : {int64_t{0}, int64_t{128}}) {
        CAPTURE(window);
        // The key at the query's own place counts half, as scores are cut along the diagonal.
        double keys = 0;
        for (int64_t q = 0; q < sequence; ++q) {
          keys += window == 0 || q < window ? static_cast<double>(q) + 0.5
                                            : static_cast<double>(window);
        }
        LayerShape layer = model.layers.front();
        layer.attention.window = window;
        const WorkOfLayer work = BlockWork(model, setup, layer);
        const LayerPart& attention = PartNamed(work, "attention");
        CHECK(attention.f.flops == doctest::Approx(2.0 * 3 * keys * 64 * (64 + 64)));
        CHECK(attention.b.flops == 2.5 * attention.f.flops);
        CHECK(attention.w.flops == 0);
      }
    }
  }

  TEST_CASE("layer work: parameters and work are split over devices") {
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
      const Flops whole = FlopsOf(BlockWork(model, SetupOn("h100"), model.layers.front()));
      CHECK(FlopsOf(layer.work).f == whole.f / parts);
      CHECK(FlopsOf(layer.work).b == whole.b / parts);
      CHECK(FlopsOf(layer.work).w == whole.w / parts);
      CHECK(layer.output_bytes == 4096 * 4096 * 2 / tp);
    }
    // With 8 key-value heads, 16 devices have one each: two copies of each.
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
    CHECK(spread.work.exchanges);
    CHECK(!alone.work.exchanges);
    // Whole experts, and their tokens ungathered; or halves, and the tokens of both devices.
    CostSetup whole = DeepSeekSetup();
    whole.tensor_parallel = 2;
    whole.expert_parallel = 32;
    CostSetup halves = whole;
    halves.expert_tensor = 2;
    const LayerEstimate of_whole = LayerNamed(CostsOf(deepseek, whole), "moe");
    const LayerEstimate of_halves = LayerNamed(CostsOf(deepseek, halves), "moe");
    CHECK(of_whole.work.expert_parameters == 8 * expert);
    CHECK(of_halves.work.expert_parameters == 8 * expert / 2);
    CHECK(of_whole.work.parameters - of_halves.work.parameters == 8 * expert / 2);
    CHECK(FlopsOf(of_whole.work).f == FlopsOf(of_halves.work).f);
    const auto gathers = [](const LayerEstimate& of) {
      return std::ranges::count_if(of.work.parts, [](const LayerPart& part) {
        return part.kind == WorkKind::kTensorParallel;
      });
    };
    CHECK(gathers(of_halves) == gathers(of_whole) + 1);
    // A group of 32 devices is on 4 nodes, one of 64 on 8, to 4 of which a token goes at most.
    const double token = 4096.0 / 2 * 7168;
    CHECK(of_whole.work.combine.network_bytes == token * 2 * 4 * 3 / 4);
    CHECK(of_halves.work.combine.network_bytes == token * 2 * 4 * 7 / 8);
  }

  TEST_CASE("layer work: bytes of activations by hand") {
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

  TEST_CASE("layer work: bytes of an all-to-all") {
    const ModelShape deepseek = PublishedModel("deepseek-v3");
    const double token = 4096.0 * 7168;
    // Eight nodes, of which a token goes to four at most; its own is one in eight.
    const WorkOfLayer spread = BlockWork(deepseek, DeepSeekSetup(), deepseek.layers.back());
    CHECK(spread.dispatch.network_bytes == token * 4 * 7 / 8);
    CHECK(spread.combine.network_bytes == token * 2 * 4 * 7 / 8);
    CHECK(spread.dispatch.nvlink_bytes == token * 8 * 7 / 8);
    // Without groups, a copy for each expert.
    LayerShape free = deepseek.layers.back();
    free.moe.top_groups = free.moe.groups;
    CHECK(BlockWork(deepseek, DeepSeekSetup(), free).dispatch.network_bytes == token * 8 * 7 / 8);
    CostSetup node = DeepSeekSetup();
    node.expert_parallel = 4;
    node.fp8 = false;
    const WorkOfLayer near = BlockWork(deepseek, node, deepseek.layers.back());
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
    const MoeCost moe = *LayerNamed(CostsOf(deepseek, exact), "moe").components;
    CHECK(moe.dispatch_f[0] == kNetworkLatency + TransferTime(spread.dispatch, exact));
    CHECK(moe.combine_b == moe.dispatch_f);
    CHECK(moe.dispatch_b == moe.combine_f);
    exact.wait = 0.5;
    const LayerEstimate waits = LayerNamed(CostsOf(deepseek, exact), "moe");
    CHECK(waits.components->dispatch_f[0] - moe.dispatch_f[0] ==
          std::llround(0.5 * static_cast<double>(waits.f + waits.b + waits.w)));
  }

  TEST_CASE("layer work: bytes of a matmul by hand") {
    const double rows = 4096, in = 4096, out = 28672;
    CostSetup setup = SetupOn("h100");
    const ModelShape model = PublishedModel("llama-3.1-8b");
    const WorkOfLayer in_bf16 = BlockWork(model, setup, model.layers.front());
    const LayerPart& bf16 = PartNamed(in_bf16, "gate, up");
    CHECK(bf16.f.bytes == 2 * (rows * in + in * out + rows * out));
    CHECK(bf16.b.bytes == 2 * (rows * in + in * out + rows * out));
    // Its gradient is read and written in fp32.
    CHECK(bf16.w.bytes == 2 * (rows * in + rows * out) + 8 * in * out);
    setup.fp8 = true;
    const WorkOfLayer in_fp8 = BlockWork(model, setup, model.layers.front());
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

  TEST_CASE("layer work: the head is passed once more for each prediction module") {
    ModelShape model = PublishedModel("deepseek-v3");
    const CostSetup setup = DeepSeekSetup();
    const WorkOfLayer twice = HeadWork(model, setup);
    model.predictions = 0;
    const WorkOfLayer once = HeadWork(model, setup);
    CHECK(FlopsOf(once).f == 2.0 * 4096 * 7168 * 129280);
    CHECK(FlopsOf(twice).f == 2 * FlopsOf(once).f);
    CHECK(twice.parameters == once.parameters);
  }
}

}  // namespace
}  // namespace contraflow::layer_work_test
