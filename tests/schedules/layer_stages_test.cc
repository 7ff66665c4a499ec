// Stages made of a model's layers: their costs and memory, and files of layers.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/partition/partition.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::layer_stages_test {
namespace {

using Kind = PartitionChoice::Kind;

TEST_SUITE("unit") {
  TEST_CASE("layers with components cost what they do interleaved") {
    CostModel costs;
    LayerCost moe = {.name = "moe", .repeat = 3, .cost = {}};
    moe.moe = MoeCost{.layers_per_stage = 1,
                      .attn_f = {4},
                      .dispatch_f = {3},
                      .mlp_f = {5},
                      .combine_f = {3},
                      .combine_b = {3},
                      .mlp_b = {5},
                      .dispatch_b = {3},
                      .attn_b = {4},
                      .mlp_w = {5},
                      .attn_w = {4}};
    LayerCost head = {.name = "head", .cost = {.f = 2, .b = 3, .w = 1, .bw = 4, .fb = 6}};
    costs.layers = {moe, head};
    LayerStages stages(costs, Overlap::kPublished);
    const StageCost one = stages.CostOf(0, 1), whole = stages.CostOf(0, 4);
    CHECK(one.f == 15);
    CHECK(one.bw == one.b + one.w);
    CHECK(one.fb < one.f + one.bw);
    CHECK(whole.f == 3 * 15 + 2);
    CHECK(whole.b == 3 * 15 + 3);
    CHECK(whole.w == 3 * 9 + 1);
    CHECK(whole.fb <= 3 * one.fb + 6);
    CHECK(whole.fb >= 3 * 27 + 6);  // the compute lane alone
    LayerStages overlapped(costs, Overlap::kAll);
    CHECK(overlapped.CostOf(0, 4).bw < whole.bw);
    // Stages of 24 layers at a time.
    costs.layers.front().repeat = 61;
    LayerStages many(costs, Overlap::kAll);
    const StageCost all = many.CostOf(0, 62), front = many.CostOf(0, 20);
    CHECK(all.f == 61 * 15 + 2);
    CHECK(all.fb == front.fb + many.CostOf(20, 41).fb + many.CostOf(41, 62).fb);
    CHECK(20 * all.fb < 61 * front.fb + 20 * 6 + 20 * 15);
  }

  TEST_CASE("messages are as large as what a stage ends with, and a tied layer has its own copy") {
    CostModel costs = ReadCosts(R"({"unit": "us", "comm": {"bytes": 1, "bandwidth": 2},
      "layers": [
        {"name": "embedding", "f": 1, "b": 1, "w": 1, "tied": "head", "output_bytes": 40},
        {"name": "block", "repeat": 2, "f": 1, "b": 1, "w": 1, "output_bytes": 30, "parameter_bytes": 5},
        {"name": "head", "f": 1, "b": 1, "w": 1, "parameter_bytes": 70}]})",
                                "c.json");
    LayerStages stages(costs, Overlap::kAll);
    CostModel made = stages.Make({1, 3});
    CHECK(made.comm.bytes == 40);
    CHECK(made.comm.occupancy == 20'000);
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{70, 80});
    made = stages.Make({1, 2, 1});
    CHECK(made.comm.sizes == std::vector<MessageSize>{{40, 20'000}, {30, 15'000}});
    CHECK(made.comm.bytes == 30);
    CHECK(made.comm.occupancy == 15'000);
    CHECK(ReadCosts(WriteCosts(made), "again") == made);
    made = stages.Make({2, 2});
    CHECK(made.comm.bytes == 30);
    CHECK(made.comm.sizes.empty());
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{75, 75});
    CHECK(stages.Make({4}).memory->parameter_bytes == std::vector<int64_t>{80});
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK(ReadCosts(WriteCosts(made), "again") == made);
  }

  TEST_CASE("a large message on one edge is in the step, in no bound and in the buffers") {
    CostModel costs = ReadCosts(R"({"unit": "us", "comm": {"bytes": 1, "bandwidth": 10},
      "layers": [
        {"name": "block", "repeat": 9, "f": 10, "b": 10, "w": 10, "output_bytes": 20,
         "activation_bytes": 100, "w_stash_bytes": 40},
        {"name": "module", "f": 10, "b": 10, "w": 10, "output_bytes": 200,
         "activation_bytes": 300, "w_stash_bytes": 40},
        {"name": "head", "repeat": 2, "f": 10, "b": 10, "w": 10, "output_bytes": 20,
         "activation_bytes": 100, "w_stash_bytes": 40}]})",
                                "c.json");
    for (const char* name : {"1f1b", "zb-1p", "dualpipe", "zb-v", "interleaved-1f1b", "auto"}) {
      CAPTURE(name);
      Spec spec = MakeSpec(name, 4, 8, costs);
      spec.search.budget = 2'000'000;
      for (const Level level : {Level::kComm, Level::kBuffer}) {
        const Plan plan = Compile(spec, {.level = level});
        CHECK(Verify(plan).empty());
        const Time step = Simulate(plan, *plan.costs).makespan;
        CHECK(ProveBound(plan, *plan.costs).value <= step);
        if (plan.provenance) CHECK(plan.provenance->bound <= step);
        if (plan.provenance && level == Level::kComm) CHECK(plan.provenance->makespan == step);
        CostModel smallest = *plan.costs;
        smallest.comm.sizes.clear();
        CHECK(Simulate(plan, smallest).makespan <= step);
      }
    }
  }

  TEST_CASE("costs by layer take the stages of a plan that exists") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.stages.clear();
    const auto layer = [](const char* name, int repeat, Time f) {
      LayerCost cost;
      cost.name = name;
      cost.repeat = repeat;
      cost.cost = {.f = f, .b = f, .w = f, .bw = 2 * f, .fb = 3 * f};
      return cost;
    };
    costs.layers = {layer("embedding", 1, 1), layer("block", 4, 10), layer("head", 1, 5)};
    Spec spec = MakeSpec("1f1b", 2, 4, costs);
    spec.partition = {.kind = Kind::kList, .layers = {4, 2}};
    Plan plan = Compile(spec);
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    CostModel unlike = costs;
    unlike.ranks = {{.speed = 1}, {.speed = 0.5}};
    spec.costs = unlike;
    plan = Compile(spec);
    CHECK(OnRanks(StagesForPlan(unlike, plan, Overlap::kAll), plan) == *plan.costs);
    // Layout of a plan that says nothing about layers.
    const Plan other = Compile(MakeSpec("1f1b", 2, 4, UniformCosts(1, 1, 1)));
    CostModel even = StagesForPlan(costs, other, Overlap::kAll);
    CHECK(even.partition == Partition{3, 3});
    CHECK(even.stages[1].f == 25);
    costs.layers[1].repeat = 3;
    CHECK(Failure([&] { StagesForPlan(costs, plan, Overlap::kAll); }) ==
          "the plan was made for 6 layers, and the costs have 5; give the costs of the model that "
          "the plan was compiled for");
    costs.layers.resize(1);
    CHECK(Failure([&] { StagesForPlan(costs, other, Overlap::kAll); }) ==
          "the plan has 2 stages, and the costs have 1 layer; give costs with at least one for "
          "each stage");
  }

  TEST_CASE("layers with components become stages alike for a plan of components") {
    CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 0, "w": 4, "parameter_bytes": 100, "step": 8},
      {"name": "block", "repeat": 4, "parameter_bytes": 10, "output_bytes": 64, "step": 1,
       "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1,
               "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200}]})",
                                "c.json");
    const CostModel made = AlikeStages(costs, 2, Overlap::kAll);
    CHECK(made.layers.empty());
    CHECK(made.partition.empty());
    REQUIRE(made.moe);
    CHECK(made.moe->layers_per_stage == 2);
    CHECK(made.moe->attn_f == std::vector<Time>{1'000, 5'000});  // half of 2 + 6
    CHECK(made.moe->attn_b == std::vector<Time>{1'000, 5'000});
    CHECK(made.moe->attn_w == std::vector<Time>{1'000, 8'000});
    CHECK(made.moe->mlp_f == std::vector<Time>{1'000});
    REQUIRE(made.stages.size() == 1);
    CHECK(made.stages[0].f == 12'000);
    CHECK(made.stages[0].step == 10'000);
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{120, 220});
    const Plan plan = Compile(MakeSpec("zb-1p", 2, 4, made), {.level = Level::kComponent});
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == made);
    CHECK(Failure([&] { AlikeStages(costs, 3, Overlap::kAll); }) ==
          "a plan of components needs as many layers in each of the 3 stages, and the costs have 4 "
          "layers with \"moe\"; compile to level comm, or for another number of stages");
    costs.layers[1].repeat = 8;
    CHECK(Failure([&] { StagesForPlan(costs, plan, Overlap::kAll); }) ==
          "the plan has components of 2 layers a stage, and the costs make it 4; give the costs of "
          "the model that the plan was compiled for");
    costs.ranks = {{.speed = 1}, {.speed = 0.5}};
    CHECK(Failure([&] { AlikeStages(costs, 2, Overlap::kAll); }) ==
          "a plan of components needs ranks alike, and the costs give some another \"speed\"; "
          "compile to level comm, or leave \"ranks\" out");
    costs.layers[1].moe.reset();
    CHECK(Failure([&] { AlikeStages(costs, 2, Overlap::kAll); }) ==
          "a plan of components needs layers with \"moe\", all alike, and others only before and "
          "after them; compile to level comm, or give costs with \"moe\" alone");
  }

  TEST_CASE("stages of unlike layers get the components of their own") {
    const CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 0, "w": 4, "parameter_bytes": 100, "tied": "head"},
      {"name": "dense", "dense": {"attn_f": 3, "mlp_f": 4, "mlp_b": 5, "attn_b": 6, "mlp_w": 7,
                                  "attn_w": 8}},
      {"name": "block", "repeat": 3, "parameter_bytes": 10, "activation_bytes": 7,
       "moe": {"attn_f": 1, "dispatch_f": 2, "mlp_f": 3, "combine_f": 4, "combine_b": 5,
               "mlp_b": 6, "dispatch_b": 7, "attn_b": 8, "mlp_w": 9, "attn_w": 10}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200}]})",
                                      "c.json");
    CHECK(ReadCosts(WriteCosts(costs), "c.json") == costs);
    Spec spec = MakeSpec("dualpipe", 2, 4, costs);
    spec.partition = {.kind = Kind::kList, .layers = {3, 3}};
    const Plan plan = Compile(spec, {.level = Level::kComponent});
    REQUIRE(plan.stage_layers.size() == 2);
    CHECK(ToString(plan.stage_layers[0]) == "pdm");
    CHECK(ToString(plan.stage_layers[1]) == "mmp");
    REQUIRE(plan.costs->stage_moe.size() == 2);
    const MoeCost& first = plan.costs->stage_moe[0];
    CHECK(first.attn_f == std::vector<Time>{2'000, 3'000, 1'000});
    CHECK(first.mlp_w == std::vector<Time>{0, 7'000, 9'000});
    CHECK(first.combine_b == std::vector<Time>{0, 0, 5'000});
    CHECK(plan.costs->stages[0].f == 19'000);
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    // Slower ranks take longer for components as well.
    spec.costs.ranks = {{.speed = 0.5}, {.speed = 1}};
    spec.schedule = "1f1b";
    CHECK(Compile(spec, {.level = Level::kComponent}).costs->stage_moe[0].attn_f ==
          std::vector<Time>{4'000, 6'000, 2'000});
    // A partition that is searched is never longer than an even one, nor `auto` than 1F1B.
    spec = MakeSpec("1f1b", 2, 4, costs);
    const auto step = [&] {
      const Plan made = Compile(spec, {.level = Level::kComponent});
      return Simulate(made, *made.costs).makespan;
    };
    const Time best = step();
    spec.partition = {.kind = Kind::kEven, .layers = {}};
    CHECK(best <= step());
    spec = MakeSpec("auto", 2, 4, costs);
    spec.search.placement = Placement::kLinear;
    spec.search.budget = 10'000'000;
    CHECK(step() <= best);
  }

  TEST_CASE("the ends of a model become part of the layers beside them") {
    CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 1, "w": 4, "parameter_bytes": 100, "step": 3},
      {"name": "block", "repeat": 4, "parameter_bytes": 10, "activation_bytes": 7, "step": 1,
       "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1,
               "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200, "activation_bytes": 9}]})",
                                "c.json");
    const CostModel folded = FoldEnds(costs);
    REQUIRE(folded.layers.size() == 3);
    CHECK(folded.LayerCount() == 4);
    CHECK(folded.layers[0].repeat == 1);
    CHECK(folded.layers[1].repeat == 2);
    CHECK(folded.layers[0].moe->attn_f == std::vector<Time>{3'000});
    CHECK(folded.layers[0].moe->attn_w == std::vector<Time>{5'000});
    CHECK(folded.layers[0].parameter_bytes == 110);
    CHECK(folded.layers[0].cost.step == 4'000);
    CHECK(folded.layers[1] == LayerCost{.name = "block",
                                        .repeat = 2,
                                        .cost = {.step = 1'000},
                                        .moe = costs.layers[1].moe,
                                        .parameter_bytes = 10,
                                        .activation_bytes = 7});
    CHECK(folded.layers[2].moe->attn_b == std::vector<Time>{9'000});
    CHECK(folded.layers[2].activation_bytes == 16);
    Spec spec = MakeSpec("1f1b", 2, 4, folded);
    spec.partition = {.kind = Kind::kList, .layers = {1, 3}};
    const Plan plan = Compile(spec, {.level = Level::kComponent});
    CHECK(plan.AllMoe());
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    // A dense layer exchanges nothing, so its components run one after the other.
    CostModel dense = costs;
    MoeCost& parts = dense.layers[0].moe.emplace(*costs.layers[1].moe);
    parts.kinds = {LayerKind::kDense};
    parts.attn_f = {1'500};
    parts.mlp_f = {500};
    parts.mlp_b = parts.attn_b = {500};
    parts.attn_w = {3'000};
    dense.layers[0].cost = {.step = 3'000};
    CHECK(FoldEnds(dense) == folded);
    costs.layers[1].moe.reset();
    CHECK(Failure([&] { FoldEnds(costs); }) ==
          "contraflow-run has layers with \"moe\" alone, and others only before and after them; "
          "compile without `model`, or give costs with such layers");
  }

  TEST_CASE("a stage has no more bytes than a plan may say") {
    CostModel costs;
    costs.layers = {{.name = "block", .repeat = 8, .cost = UniformCosts(1, 1, 1).stages.front()}};
    costs.layers[0].optimizer_bytes = int64_t{1} << 38;
    CHECK(Failure([&] { Compile(MakeSpec("1f1b", 2, 4, costs)); }) == "accepted");
    costs.layers[0].repeat = 10;
    CHECK(Failure([&] { Compile(MakeSpec("1f1b", 2, 4, costs)); }) ==
          "the layers of stage 0 have 1374389534720 bytes of optimizer state, and a stage has at "
          "most 1099511627776; use more `ranks`, or costs of a model split over more devices");
    costs.layers[0].optimizer_bytes.reset();
    costs.layers[0].activation_bytes = int64_t{1} << 38;
    for (const char* schedule : {"1f1b", "auto"}) {
      CHECK(Contains(Failure([&] { Compile(MakeSpec(schedule, 2, 4, costs)); }),
                     " bytes of activations of a micro-batch, and a stage has at most "));
    }
  }

  TEST_CASE("a file of layers that does not hold says where") {
    const auto failure = [](const std::string& layers, const std::string& more = "") {
      return Failure(
          [&] { ReadCosts("{\"unit\": \"us\", \"layers\": " + layers + more + "}", "c.json"); });
    };
    CHECK(failure("[]") == "c.json: /layers: must have 1..4096 layers, has 0");
    CHECK(failure(R"([{"name": "a", "repeat": 4097, "f": 1, "b": 1, "w": 1}])") ==
          "c.json: /layers/0/repeat: must be a number of layers in 1..4096, is 4097");
    CHECK(failure(R"([{"name": "a", "repeat": 4096, "f": 1, "b": 1, "w": 1},
                      {"name": "b", "f": 1, "b": 1, "w": 1}])") ==
          "c.json: /layers: must have 1..4096 layers, has 4097");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1}])") ==
          "c.json: /layers/0: the key \"w\" is missing; add it");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1, "tied": "a"}])") ==
          "c.json: /layers/0/tied: must be the name of one other layer, is \"a\"");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1, "w_stash_bytes": 1}])") ==
          "c.json: /layers/0: \"w_stash_bytes\" is part of \"activation_bytes\" and must be at "
          "most 0, is 1");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1}])", R"(, "moe": {})") ==
          "c.json: has \"layers\", which stages are made of, and \"moe\", which is about stages; "
          "keep one");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1}])",
                  R"(, "memory": {"activation_bytes": 1})") ==
          "c.json: /memory: unknown key \"activation_bytes\"; known are: zero, workspace_bytes");
  }
}

}  // namespace
}  // namespace contraflow::layer_stages_test
