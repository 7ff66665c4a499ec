// Ranks that differ in speed or memory: what stages cost on them, and plans made for them.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compare.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "schedules/search/portfolio.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::ranks_test {
namespace {

CostModel Layers(int count) {
  CostModel costs;
  LayerCost layer = {.name = "block", .repeat = count, .cost = {.f = 1000, .b = 1200, .w = 800}};
  layer.cost.bw = 2000;
  layer.cost.fb = 3000;
  layer.parameter_bytes = 50;
  layer.activation_bytes = 10;
  costs.layers = {layer};
  return costs;
}

CostModel Read(const std::string& text) { return ReadCosts(text, "costs.json"); }

std::string WhyNot(const std::string& text) {
  return Failure([&] { Read(text); });
}

}  // namespace

TEST_SUITE("property") {
  TEST_CASE("a rank that is k times as slow is a rank whose stages take k times as long") {
    std::mt19937_64 random(4);
    int compared = 0;
    for (int round = 0; round < 12; ++round) {
      const int ranks = 2 + static_cast<int>(random() % 3);
      CompareRequest request;
      request.spec = MakeSpec("", ranks, 2 * ranks, {});
      for (int s = 0; s < ranks; ++s) {
        const Time f = 60 * static_cast<Time>(1 + random() % 9);
        request.spec.costs.stages.push_back({.f = f, .b = f, .w = f, .bw = 2 * f, .fb = 3 * f});
      }
      CompareRequest slow = request;
      for (int s = 0; s < ranks; ++s) {
        const int times = 1 + static_cast<int>(random() % 3);
        slow.spec.costs.ranks.push_back({.speed = 1.0 / times, .memory_bytes = {}});
        StageCost& stage = request.spec.costs.stages[static_cast<size_t>(s)];
        stage = {.f = stage.f * times,
                 .b = stage.b * times,
                 .w = stage.w * times,
                 .bw = stage.bw * times,
                 .fb = stage.fb * times};
      }
      request.no_auto = slow.no_auto = true;
      const std::vector<CompareRow> by_stage = Compare(request), by_rank = Compare(slow);
      REQUIRE(by_stage.size() == by_rank.size());
      for (size_t i = 0; i < by_stage.size(); ++i) {
        // With other stages than ranks, or two routes, a slow rank is no slow stage.
        if (by_stage[i].stages != ranks || by_stage[i].twice || !by_rank[i].report) continue;
        CAPTURE(by_stage[i].schedule);
        CHECK(by_rank[i].makespan() == by_stage[i].makespan());
        ++compared;
      }
    }
    CHECK(compared == 12 * 4);
  }

  TEST_CASE("layers go where ranks are fast, and no plan is below its bound") {
    std::mt19937_64 random(5);
    for (int round = 0; round < 6; ++round) {
      const int ranks = 4;
      Spec spec = MakeSpec("", ranks, 8, Layers(24));
      for (int r = 0; r < ranks; ++r) {
        const double speed = round == 0 ? 1 : 0.5 + 0.25 * static_cast<double>(random() % 5);
        spec.costs.ranks.push_back({.speed = speed, .memory_bytes = {}});
      }
      spec.search.budget = 10'000'000;
      for (const char* name : {"1f1b", "zb-1p", "zb-v", "interleaved-1f1b", "auto"}) {
        CAPTURES(name, round);
        spec.schedule = name;
        spec.partition.reset();
        const Plan plan = Compile(spec);
        CHECK(Verify(plan).empty());
        CHECK(plan.costs->ranks.empty());
        const Time makespan = Simulate(plan, *plan.costs).makespan;
        CHECK(ProveBound(plan, *plan.costs, std::nullopt).value <= makespan);
        if (plan.provenance) {
          CHECK(plan.provenance->bound <= makespan);
          continue;
        }
        spec.partition = PartitionChoice{.kind = PartitionChoice::Kind::kEven, .layers = {}};
        const Plan even = Compile(spec);
        CHECK(makespan <= Simulate(even, *even.costs).makespan);
        if (round == 0) continue;
        std::vector<int> layers(ranks, 0);
        for (size_t s = 0; s < plan.costs->partition.size(); ++s) {
          layers[static_cast<size_t>(plan.routes[0].ranks[s])] += plan.costs->partition[s];
        }
        const auto speed = [&](int r) { return spec.costs.ranks[static_cast<size_t>(r)].speed; };
        for (int a = 0; a < ranks; ++a) {
          for (int b = 0; b < ranks; ++b) {
            if (speed(a) >= 2 * speed(b)) {
              CHECK(layers[static_cast<size_t>(a)] > layers[static_cast<size_t>(b)]);
            }
          }
        }
      }
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a device of its own limits a rank, and a smaller one gets fewer layers") {
    Spec spec = MakeSpec("1f1b", 4, 8, Layers(24));
    spec.costs.ranks.resize(4);
    const Plan free = Compile(spec);
    CHECK(free.costs->partition == Partition{6, 6, 6, 6});
    spec.costs.ranks[1].memory_bytes = 300;
    CHECK(DevicesOf(spec)[1] == 300);
    CHECK(DevicesOf(spec)[0] > int64_t{1} << 60);
    const Plan plan = Compile(spec);
    CHECK(plan.costs->partition[1] <= 3);
    CHECK(MemoryOf(plan, *plan.costs)[1].total() <= 300);
    // Memory that all devices have counts as well.
    spec.device_memory = 250;
    CHECK(DevicesOf(spec) == std::vector<int64_t>{250, 250, 250, 250});
    spec.device_memory = 1000;
    CHECK(DevicesOf(spec) == std::vector<int64_t>{1000, 300, 1000, 1000});
    spec.partition = PartitionChoice{.kind = PartitionChoice::Kind::kEven, .layers = {}};
    CHECK(Contains(Failure([&] { Compile(spec); }), "rank 1 holds 480 bytes, its device has 300"));
  }

  TEST_CASE("memory of ranks needs the bytes of activations, of every schedule") {
    CostModel costs = Layers(8);
    costs.layers.front().activation_bytes = {};
    costs.memory.reset();
    costs.ranks.assign(4, {1, 1000});
    for (const char* schedule : {"1f1b", "zb-v", "auto"}) {
      CAPTURE(schedule);
      CHECK(Failure([&] { Compile(MakeSpec(schedule, 4, 8, costs)); }) ==
            "\"memory_bytes\" of a rank: the costs do not say what activations take; give "
            "\"activation_bytes\"");
    }
    CompareRequest request;
    request.spec = MakeSpec("", 4, 8, costs);
    for (const CompareRow& row : Compare(request)) CHECK_FALSE(row.report);
  }

  TEST_CASE("a searched plan that holds more than the limit of the fullest rank has its bound") {
    Spec spec = MakeSpec("auto", 4, 8, Layers(12));
    spec.search.budget = 1000;
    Plan plan = Compile(spec);
    plan.provenance->memory_limit = 1;
    CHECK(MakeReport(plan, *plan.costs).bound.value == ProveBound(plan, *plan.costs).value);
  }

  TEST_CASE("a plan of auto has the limit of its stages") {
    Spec spec = MakeSpec("auto", 3, 8, UniformCosts(200, 200, 200));
    spec.memory_limit = 3;
    spec.search.placement = Placement::kV;
    const Plan best = GeneratePlan(spec);
    CHECK(best.stages == 6);
    CHECK(best.provenance->memory_limit == 6);
    CHECK(FitsMemory(best, *best.costs, spec));
  }

  TEST_CASE("a stage on two ranks takes as long as on the slower one") {
    Spec spec = MakeSpec("dualpipe", 4, 8, UniformCosts(100, 100, 100));
    const auto step = [&](std::vector<double> speeds) {
      spec.costs.ranks.clear();
      for (const double speed : speeds) spec.costs.ranks.push_back({speed, {}});
      const Plan plan = Compile(spec);
      return Simulate(plan, plan.costs.value_or(spec.costs)).makespan;
    };
    CHECK(step({1, 0.5, 1, 1}) == step({1, 0.5, 0.5, 1}));
    CHECK(step({1, 0.5, 1, 1}) > step({1, 1, 1, 1}));
    spec.costs.ranks.pop_back();
    CHECK(Failure([&] { Compile(spec); }) ==
          "`costs`: /ranks: lists 3 ranks, `ranks` is 4; give one entry for each rank");
  }

  TEST_CASE("the slower of two ranks decides wherever its route stands") {
    for (const bool first : {true, false}) {
      CostModel costs = UniformCosts(1, 1, 1);
      costs.ranks = {{.speed = first ? 0.5 : 1.0}, {.speed = first ? 1.0 : 0.5}};
      const Plan plan = Compile(MakeSpec("chimera", 2, 4, costs));
      CHECK(Simulate(plan, *plan.costs).makespan == 24);
    }
  }

  TEST_CASE("ranks in files") {
    const std::string head = R"({"unit": "ms", "stage": {"f": 1, "b": 1, "w": 1}, "ranks": )";
    const CostModel costs = Read(head + R"([{"speed": 0.5}, {"memory_bytes": 80}, {}]})");
    REQUIRE(costs.ranks.size() == 3);
    CHECK(costs.ranks[0] == RankCost{0.5, {}});
    CHECK(costs.ranks[1] == RankCost{1, 80});
    CHECK(Read(WriteCosts(costs)) == costs);
    CHECK(WhyNot(head + "[]}") == "costs.json: /ranks: must have 1..16384 entries, has 0");
    CHECK(WhyNot(head + R"([{"speed": 0}]})").find("/ranks/0/speed: must be") != std::string::npos);
    CHECK(WhyNot(head + R"([{"memory_bytes": 0}]})").find("/ranks/0/memory_bytes: must be") !=
          std::string::npos);
    CHECK(WhyNot(head + R"([{"pace": 1}]})").find("\"pace\"") != std::string::npos);
  }
}

}  // namespace contraflow::ranks_test
