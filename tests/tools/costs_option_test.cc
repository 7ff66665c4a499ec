#include <doctest/doctest.h>

#include <string>

#include "compiler/plan/layer_cost.h"
#include "compiler/plan/spec.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tools/cli/exit.h"
#include "tools/cli/spec_options.h"
#include "tools/report/report.h"

namespace contraflow::costs_option_test {
namespace {

CostsOption DeepSeek() { return {.file = "deepseek-v3-h800"}; }

TEST_SUITE("unit") {
  TEST_CASE("a full backward alone is divided into its parts") {
    CostsOption option = {.f = 6.2, .bw = 12.1};
    CostModel costs = ResolveCosts(option, UnitCosts());
    CHECK(costs.stage(0).b == 6'050'000);
    CHECK(costs.stage(0).w == 6'050'000);
    CHECK(costs.stage(0).fb == 18'300'000);
    option.split = 0.6;
    costs = ResolveCosts(option, UnitCosts());
    CHECK(costs.stage(0).b == 7'260'000);
    CHECK(costs.stage(0).w == 4'840'000);
    option.split = 1.1;
    CHECK_THROWS_AS(ResolveCosts(option, UnitCosts()), UsageError);
    // If the parts are known there is nothing to divide.
    CHECK_THROWS_AS(ResolveCosts({.b = 1, .bw = 2, .split = 0.5}, UnitCosts()), UsageError);
    CHECK_THROWS_AS(ResolveCosts({.b = 3, .bw = 2}, UnitCosts()), UsageError);
    CHECK(ResolveCosts({.w = 2.5, .bw = 3}, UnitCosts()).stage(0).b == 500'000);
    CHECK(ResolveCosts({.b = 2, .bw = 3}, UnitCosts()).stage(0).w == 1'000'000);
    costs = ResolveCosts({.bw = 9}, UniformCosts(3'000'000, 4'000'000, 2'000'000));
    CHECK(costs.stage(0).b == 4'000'000);
    CHECK(costs.stage(0).bw == 9'000'000);
  }

  TEST_CASE("what is assumed of costs is said") {
    const auto assumed = [](const CostsOption& option) {
      std::vector<std::string> said;
      ResolveCosts(option, UnitCosts(), &said);
      return said;
    };
    using Said = std::vector<std::string>;
    CHECK(assumed({.f = 1, .b = 2, .w = 3}).empty());
    CHECK(assumed({.f = 6.2, .bw = 12.1}) ==
          Said{"\"bw\" without \"b\" and \"w\" is divided into 6.05 and 6.05 (b takes 0.5 of it)"});
    CHECK(assumed({.f = 1, .b = 2, .bw = 3}) ==
          Said{"`w` is what the other part leaves of `bw`, 1"});
    CHECK(assumed({.b = 10}) == Said{"`f`, `w` not given and taken as 1"});
    CHECK(assumed({.f = 2, .b = 3, .w = 2, .bw = 2.9, .fb = 2.5}) ==
          Said{"\"bw\" is 2.9, shorter than \"b\" or \"w\", and taken as 3, and \"fb\" is 2.5, "
               "shorter than \"f\", \"b\" or \"w\", and taken as 3"});
    const std::vector<std::string> file = assumed({.file = CF_TEST_DIR "/tools/noisy_costs.json"});
    REQUIRE(file.size() == 3);
    CHECK(
        file[0].ends_with("noisy_costs.json: /stages/0: \"bw\" is 11.9, shorter than \"b\" or "
                          "\"w\", and taken as 12"));
  }

  TEST_CASE("fields of texts read as flags or keywords, and nothing else does") {
    CHECK(WithFlags("`memory_limit`: must be positive, is \"0\"") ==
          "--memory-limit: must be positive, is \"0\"");
    CHECK(WithFlags("use fewer `ranks` or `microbatches`") ==
          "use fewer --ranks or --microbatches");
    for (const char* const same : {"", "`", "``", "ranks", "`rank`", "a `b c` d", "5 ` ranks"}) {
      CHECK(WithFlags(same) == same);
      CHECK(WithKeywords(same) == same);
    }
    CHECK(WithFlags("` `chunks`") == "` --chunks");
    CHECK(WithFlags(FieldOf("--memory-limit")) == "--memory-limit");
    CHECK(WithKeywords("`memory_limit`: is \"--ranks\", see a/--chunks; `rank`") ==
          "memory_limit: is \"--ranks\", see a/--chunks; `rank`");
    CHECK(
        Failure<UsageError>([] { ReadOption([] { return ParseRecompute("x").stages; }); }) ==
        "`recompute`: must be none, full, auto, attention, experts, all-but-attention, layers=N or "
        "stages as in \"0,3,5-7\", is \"x\"");
  }

  TEST_CASE("chunk costs are derived as --overlap says") {
    CostsOption option = DeepSeek();
    CHECK(ResolveCosts(option, UnitCosts()).stages[0].bw == 115'376'000);
    CHECK(OverlapOf(option, ResolveCosts(option, UnitCosts())) == Overlap::kAll);
    option.overlap = "published";
    const CostModel published = ResolveCosts(option, UnitCosts());
    CHECK(published.stages[0].bw == 142'856'000);
    CHECK(OverlapOf(option, published) == Overlap::kPublished);
    CHECK(DescribeCosts(published) ==
          "f 98696, b 112980, w 29876, bw 142856, fb 127633, comm 0 (us), overlap published");
    // Costs that a plan was compiled with are derived again only where that is asked for.
    CHECK(ResolveCosts({}, published) == published);
    CHECK(OverlapOf({}, published) == Overlap::kPublished);
    option = {.overlap = "all"};
    CHECK(ResolveCosts(option, published).stages[0].bw == 115'376'000);
  }

  TEST_CASE("single figures stand over derived ones") {
    CostsOption option = DeepSeek();
    option.f = 98'794.696;
    std::vector<std::string> said;
    StageCost stage = ResolveCosts(option, UnitCosts(), &said).stages[0];
    const StageCost derived = ResolveCosts(DeepSeek(), UnitCosts()).stages[0];
    CHECK(stage.f == 98'794'696);
    CHECK(stage.bw == derived.bw);
    CHECK(stage.fb == derived.fb);
    CHECK(said.empty());
    // A bw that is longer than its parts together is no figure of theirs.
    option.w = 1;
    stage = ResolveCosts(option, UnitCosts(), &said).stages[0];
    CHECK(stage.w == 1'000);
    CHECK(stage.bw == 112'981'000);
    CHECK(stage.fb == derived.fb);
    REQUIRE(said.size() == 1);
    CHECK(said[0].starts_with("\"bw\" of the costs, 115376, is longer than its parts together"));
  }

  TEST_CASE("chunk costs that were given as such stay") {
    CostModel costs = ResolveCosts(DeepSeek(), UnitCosts());
    costs.derived.reset();
    costs.stages[0].bw = 1;
    CHECK(ResolveCosts({.overlap = "published"}, costs).stages[0].bw == 1);
  }

  TEST_CASE("an overlap that there is not") {
    CHECK(Failure([] { ResolveCosts({.overlap = "published"}, UnitCosts()); }) ==
          "`overlap`: says how components overlap, and these costs have none; drop it, or give "
          "costs with \"moe\", such as `costs` deepseek-v3-h800");
    CostsOption option = DeepSeek();
    option.overlap = "some";
    CHECK(Failure<UsageError>([&] { ResolveCosts(option, UnitCosts()); }) ==
          "`overlap`: unknown overlap \"some\"; it is published (F&B pairs only) or all");
  }

  TEST_CASE("a time that there is not") {
    CHECK(Failure<UsageError>([] { ResolveCosts({.f = -1}, UnitCosts()); }) == "`f`: must be >= 0");
    CHECK(Failure<UsageError>([] {
            ResolveCosts({.comm = 1e300}, UnitCosts());
          }).starts_with("`comm`: is larger than "));
  }

  TEST_CASE("costs of other layers than the plan's are refused") {
    Plan plan;
    plan.stages = plan.microbatches = 1;
    plan.layers = 2;
    CHECK(Failure([&] { CostsForPlan(DeepSeek(), plan); }) ==
          "deepseek-v3-h800: /moe/layers_per_stage: is 4, this plan has 2 layers a stage");
    plan.layers = 4;
    CHECK(Failure([&] { CostsForPlan(DeepSeek(), plan); }) == "accepted");
  }

  TEST_CASE("costs of stages are cut for a plan as its own were") {
    Spec spec;
    spec.ranks = 4;
    spec.microbatches = 8;
    spec.costs = UniformCosts(4'000'000, 4'000'000, 4'000'000);
    spec.costs.stages.assign(4, spec.costs.stages.front());
    spec.costs.stages[1].f += 400'001;
    spec.costs.stages[1].fb += 400'001;
    CostModel today = spec.costs;
    today.stages[2].w += 1'000'000;
    today.stages[2].bw += 1'000'000;
    today.stages[2].fb += 1'000'000;
    const auto check = [&](const Plan& plan, int stages) {
      CAPTURE(plan.schedule);
      REQUIRE(plan.stages == stages);
      CHECK(CostsForPlan({.read = spec.costs}, plan).stages == plan.costs->stages);
      const CostModel costs = CostsForPlan({.read = today}, plan);
      Time sum = 0;
      for (const StageCost& stage : costs.stages) sum += stage.w;
      CHECK(sum == 17'000'000);
      // The plan's own costs have its stages already.
      CHECK(CostsForPlan({.read = *plan.costs}, plan).stages == plan.costs->stages);
    };
    spec.schedule = "auto";
    spec.search.budget = 1'000'000;
    for (const Placement placement : {Placement::kV, Placement::kInterleaved}) {
      spec.search.placement = placement;
      const Plan plan = Compile(spec);
      check(plan, 8);
      CHECK(plan.provenance->cost_stages == 4);
    }
    spec.partition = PartitionChoice{.kind = PartitionChoice::Kind::kEven};
    for (const char* schedule : {"zb-v", "interleaved-1f1b", "dualpipe-v"}) {
      spec.schedule = schedule;
      check(Compile(spec), 8);
    }
    spec.schedule = "zb-v";
    today.stages.resize(3);
    CHECK(Failure([&] {
            CostsForPlan({.read = today}, Compile(spec));
          }).starts_with("`costs`: /stages: lists 3 stages, this schedule has 8; give "));
  }

  TEST_CASE("a plan keeps its ZeRO stage under the costs of its model") {
    LayerCost block = {.name = "block",
                       .repeat = 8,
                       .cost = {.f = 100, .b = 100, .w = 100, .bw = 200, .fb = 300},
                       .parameter_bytes = 10,
                       .gradient_bytes = 20,
                       .optimizer_bytes = 80};
    block.cost.reduce = 400;
    block.cost.step = 1600;
    Spec spec;
    spec.schedule = "zb-v";
    spec.ranks = 2;
    spec.microbatches = 8;
    spec.data_parallel = 4;
    spec.costs.layers = {block};
    spec.costs.ring = true;
    const CostsOption model = {.read = spec.costs};
    for (const int zero : {0, 1}) {
      ApplyDeviceMemory({.bytes = {}, .zero = zero}, &spec);
      const Plan plan = Compile(spec);
      CHECK(plan.costs->stages[0].step == (zero == 0 ? 3200 : 800));
      const CostModel costs = CostsForPlan(model, plan);
      CHECK(costs.stages == plan.costs->stages);
      CHECK(costs.memory == plan.costs->memory);
    }
  }

  TEST_CASE("an error about the costs names their file") {
    const std::string why = "auto: `costs`: /ranks: lists 3 ranks, `ranks` is 4";
    CHECK(WithCostsFile({.file = "a/b.json"}, why) ==
          "auto: a/b.json: /ranks: lists 3 ranks, `ranks` is 4");
    CHECK(WithCostsFile({.file = "-"}, "`costs`: x") == "standard input: x");
    CHECK(WithCostsFile({}, why) == why);
    CHECK(WithCostsFile(DeepSeek(), "such as `costs` moe-unit") == "such as `costs` moe-unit");
  }

  TEST_CASE("costs of chunks are refused where a plan has components") {
    Plan plan;
    plan.layers = 1;
    const auto refusal = [&](void (*give)(CostsOption*)) {
      CostsOption option;
      give(&option);
      return Failure([&] { CostsForPlan(option, plan); });
    };
    CHECK(
        refusal([](CostsOption* o) { o->w = 1; }) ==
        "`w`: a plan of components takes the times in \"moe\", cells have none of their own; give "
        "`costs` with other times there");
    CHECK(
        refusal([](CostsOption* o) { o->overlap = "all"; }) ==
        "`overlap`: how far the components of this plan overlap was settled when it was compiled; "
        "give it to contraflow compile");
  }
}

}  // namespace
}  // namespace contraflow::costs_option_test
