#include "compiler/plan/cost.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "compiler/plan/plan.h"
#include "tests/support/failure.h"

namespace contraflow::cost_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("ticks are exact and print as they were written") {
    CHECK(ToTicks(18.522, Unit::kMilliseconds, "") == 18'522'000);
    CHECK(ToTicks(4.79167, Unit::kUnit, "") == 4'791'670);
    CHECK(FormatTime(18'522'000, Unit::kMilliseconds) == "18.522");
    CHECK(FormatTime(4'791'670, Unit::kUnit) == "4.79167");
    CHECK(FormatTime(-500'000, Unit::kUnit) == "-0.5");
    CHECK(FormatTime(-1'500'000, Unit::kUnit) == "-1.5");
    CHECK(FormatTime(7, Unit::kNanoseconds) == "7");
    CHECK(FormatTime(0, Unit::kSeconds) == "0");
    CHECK(FromTicks(ToTicks(98'696, Unit::kMicroseconds, ""), Unit::kMicroseconds) == 98'696);
  }

  TEST_CASE("a cost that is no cost is refused") {
    CHECK(Failure([] { ToTicks(-1, Unit::kUnit, "/stage/f"); }) == "/stage/f: must be >= 0");
    CHECK(ToTicks(0, Unit::kMicroseconds, "") == 0);
    CHECK(ToTicks(0.0005, Unit::kMicroseconds, "") == 1);
    CHECK(Failure([] { ToTicks(0.0004, Unit::kMicroseconds, "--f"); }) ==
          "--f: is less than 0.001 us, the least time that counts: give that or more, or 0");
    CHECK(Failure([] { ToTicks(std::numeric_limits<double>::quiet_NaN(), Unit::kUnit, "--f"); }) ==
          "--f: must be a finite number");
    CHECK(ToTicks(static_cast<double>(kMaxCost) / 1e6, Unit::kMilliseconds, "--f") == kMaxCost);
    CHECK(Failure([] { ToTicks(1e300, Unit::kMilliseconds, "--f"); }) ==
          "--f: is larger than 1125899906.842624 ms, the largest cost there is");
    CHECK(Failure([] { ParseUnit("minutes"); }) ==
          "unknown unit \"minutes\"; units are ns, us, ms, s, unit");
  }

  TEST_CASE("durations: per stage per micro-batch overlapped") {
    CostModel costs = UniformCosts(10, 20, 30);
    CHECK(costs.Duration(CellOp(Op::F, 0, 0)) == 10);
    CHECK(costs.Duration(CellOp(Op::BW, 0, 0)) == 50);
    CHECK(costs.Duration(Pair(0, 1, 0, 0)) == 60);
    costs.stages[0].fb = 45;
    CHECK(costs.uniform());
    CHECK(costs.Duration(Pair(0, 1, 0, 0)) == 45);
    // Two stages: f of the one and bw of the other, less the smaller saving (15 and 5).
    costs.stages.push_back({.f = 1, .b = 2, .w = 3, .bw = 7, .fb = 3});
    CHECK_FALSE(costs.uniform());
    CHECK(costs.Duration(Pair(0, 1, 1, 0)) == 10 + 7 - 5);
    CHECK(costs.Duration(Pair(1, 1, 0, 0)) == 1 + 50 - 5);
    costs.microbatch_scale = {1.0, 2.0};
    CHECK(costs.Duration(CellOp(Op::F, 0, 1)) == 20);
    CHECK(costs.Duration(Pair(0, 1, 0, 0)) == 20 + 50 - 15);
    CHECK(costs.Duration(StageOp(Op::STEP, 0)) == 0);
  }

  TEST_CASE("durations: a pair is no shorter than the backward chain of its other stage") {
    CostModel costs;
    costs.stages = {{.f = 10, .b = 10, .w = 10, .bw = 20, .fb = 10},
                    {.f = 6, .b = 6, .w = 1, .bw = 7, .fb = 6}};
    CHECK(costs.Duration(Pair(1, 0, 1, 1)) == 6);
    CHECK(costs.Duration(Pair(0, 0, 1, 1)) == 10);
    CHECK(costs.Duration(Pair(1, 0, 0, 1)) == 19);
    // Its forward takes nothing, and the saving would take all but one of the backward.
    costs.stages[0] = {.f = 1, .b = 1, .w = 1, .bw = 20, .fb = 1};
    CHECK(costs.Duration(Pair(0, 0, 1, 1)) == 6);
  }

  TEST_CASE("costs must fit the plan") {
    CostModel costs = UniformCosts(1, 1, 1);
    CheckCosts(costs, 8, 100);
    costs.stages.resize(2, costs.stages[0]);
    CHECK(Failure([&] { CheckCosts(costs, 3, 4); }) ==
          "`costs`: /stages: lists 2 stages, this schedule has 3; give \"stage\" (every stage "
          "alike) or \"stages\" with 3 entries, or compile with `partition` even");
    costs.stages[1].fb = 0;
    CHECK(Failure([&] { CheckCosts(costs, 2, 4); }) ==
          "costs of stage 1: \"fb\" is a forward and a full backward overlapped and cannot be "
          "shorter than \"f\", \"b\" or \"w\": must be >= 0.000001, is 0");
    costs.stages = {{.f = 1, .b = 5, .w = 1, .bw = 4, .fb = 9}};
    CHECK(Failure([&] { CheckCosts(costs, 2, 4); }) ==
          "costs of every stage: \"bw\" is the full backward and cannot be shorter than \"b\" or "
          "\"w\": must be >= 0.000005, is 0.000004");
    costs = UniformCosts(1, 1, 1);
    costs.microbatch_scale = {1, 1, 1};
    CHECK(Failure([&] { CheckCosts(costs, 2, 4); }) ==
          "`costs`: /microbatch_scale: has 3 entries, this plan has 4 micro-batches; give one "
          "factor for each");
    costs = UniformCosts(1, 1, 1);
    costs.memory = MemoryCost{.activation_bytes = int64_t{1} << 40};
    CHECK(Failure([&] { CheckCosts(costs, 4096, 4096); }) ==
          "`costs`: /memory/activation_bytes: of all cells add up to more than 2^62 bytes; is it "
          "in bytes?");
    costs = UniformCosts(kMaxCost / 4, 1, 1);
    CHECK(Failure([&] { CheckCosts(costs, 1000, 1000); }) ==
          "the costs of all 1000 micro-batches add up to more than fits a 64-bit count of ticks; "
          "use a coarser \"unit\" or smaller costs");
  }

  TEST_CASE("components must fit the plan") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.moe = MoeCost{};
    costs.moe->layers_per_stage = 2;
    for (const ComponentCost& component : kComponentCosts) (*costs.moe.*component.times) = {1, 2};
    const auto check = [&](int layers) {
      return Failure([&] {
        Plan plan;
        plan.stages = 4;
        plan.layers = layers;
        CheckCosts(costs, 4, 8);
        CheckLayers(plan, costs);
      });
    };
    CHECK(check(0) == "accepted");
    CHECK(check(2) == "accepted");
    CHECK(SerialSum(*costs.moe) == 30);
    CHECK(check(4) == "`costs`: /moe/layers_per_stage: is 2, this plan has 4 layers a stage");
    costs.moe->mlp_b = {1, 2, 3};
    CHECK(check(2) ==
          "component costs (\"moe\"): \"mlp_b\" must be one number or a list with one for each of "
          "the 2 layers, has 3 entries");
    costs.moe->mlp_b = {1, -2};
    CHECK(check(2) == "component costs (\"moe\"): \"mlp_b\" must be >= 0");
    costs.moe->mlp_b = {kMaxCost};
    CHECK(check(2) ==
          "component costs (\"moe\"): the components of one stage add up to more than "
          "1125899906.842624 unit, the largest cost there is");
    costs.moe->mlp_b = {kMaxCost / 2 - 20};
    CHECK(check(2) == "accepted");
    CHECK(Failure([&] { CheckCosts(costs, 1000, 1000); }) ==
          "the costs of all 1000 micro-batches add up to more than fits a 64-bit count of ticks; "
          "use a coarser \"unit\" or smaller costs");
    // Layer 0 is compared as all others are.
    costs.moe->mlp_b = {1, 2};
    const auto kinds = [&](std::vector<LayerKind> planned, std::vector<LayerKind> given) {
      return Failure([&] {
        CostModel unlike = costs;
        unlike.moe->kinds = given;
        Plan plan;
        plan.stages = 1;
        plan.layers = 2;
        plan.stage_layers = {planned};
        CheckLayers(plan, unlike);
      });
    };
    constexpr LayerKind kMoe = LayerKind::kMoe, kDense = LayerKind::kDense;
    CHECK(kinds({kDense, kMoe}, {kDense, kMoe}) == "accepted");
    CHECK(kinds({kDense, kMoe}, {kMoe, kMoe}) ==
          "stage 0 of this plan has the layers dm (m MoE, d dense, p plain), the costs have mm "
          "there; give the costs that it was compiled with");
    CHECK(kinds({kMoe, kDense}, {kMoe, kMoe}) != "accepted");
    costs.moe->layers_per_stage = 0;
    CHECK(check(0) ==
          "component costs (\"moe\"): \"layers_per_stage\" must be in 1..64, is 0; a stage without "
          "layers has no components");
    costs.moe.reset();
    CHECK(check(2) ==
          "this plan has 2 layers a stage, and the costs have no components; give costs with "
          "\"moe\"");
  }

  TEST_CASE("gradient sums and optimizer steps are those of a plan's own replicas") {
    Plan plan;
    plan.ranks = plan.stages = 2;
    plan.routes = {{{0, 1}, {}}};
    CostModel costs = UniformCosts(1, 1, 1);
    costs.stages[0].reduce = 1200;
    costs.stages[0].step = 2400;
    CHECK(AtReplicas(costs, plan) == costs);
    costs.ring = true;
    costs.memory = MemoryCost{.parameter_bytes = {300}};
    const auto at = [&](int replicas) {
      plan.data_parallel = replicas;
      const CostModel made = AtReplicas(costs, plan);
      CHECK_FALSE(made.ring);
      CHECK(made.stages.size() == 2);
      return std::pair(made.stages[1].reduce, made.stages[1].step);
    };
    // (n - 1) / n of a ring over many; with ZeRO a step of 1 / n.
    CHECK(at(1) == std::pair<Time, Time>(0, 2400));
    CHECK(at(4) == std::pair<Time, Time>(900, 2400));
    costs.memory->zero = 1;
    CHECK(at(4) == std::pair<Time, Time>(900, 600));
    // Experts, a third, have 4 copies; all else, in an expert group of 3 devices, has 12.
    costs.memory->parameter_rest = {200};
    costs.parallel = {.ep = 3};
    CHECK(at(4) == std::pair<Time, Time>(400 * 3 / 4 + 800 * 11 / 12, 800 / 4 + 1600 / 12));
    // Mirror ranks sum too, and share nothing.
    plan.routes.push_back({{1, 0}, {}});
    CHECK(at(1) == std::pair<Time, Time>(400 / 2 + 800 * 5 / 6 + 1, 800 + 1600 / 3));
  }

  TEST_CASE("memory figures must fit the plan") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.memory = MemoryCost{.activation_bytes = 1, .optimizer_bytes = {1, 2}};
    CheckCosts(costs, 2, 4);
    CHECK(Failure([&] { CheckCosts(costs, 3, 4); }) ==
          "`costs`: /memory/optimizer_bytes: has 2 entries, this plan has 3 stages; give one "
          "number (every stage alike) or one for each stage");
    costs.memory->optimizer_bytes = {1};
    costs.memory->values.assign(2, int64_t{1} << 40);
    CHECK(
        Failure([&] { CheckCosts(costs, 2048, 2048); }) ==
        "`costs`: /memory/values: of all cells add up to more than 2^62 bytes; are they in bytes?");
  }
}

}  // namespace
}  // namespace contraflow::cost_test
