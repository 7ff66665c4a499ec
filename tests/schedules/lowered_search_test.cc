// Orders that are searched as they run once lowered, and the bound on them.

#include "schedules/pairs/lowered_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/lower/interleave.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/deepseek_costs.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::lowered_search_test {
namespace {

/// A layer of DeepSeek-V3 on H800 (tools/profiles/deepseek-v3-h800.json).
CostModel LayerCosts() {
  CostModel costs;
  costs.moe = DeepSeek(1);
  DeriveChunkCosts(&costs, Overlap::kAll);
  return costs;
}

SearchOptions OptionsOf(int64_t instructions) {
  SearchOptions options;
  options.budget = instructions * (1'000'000'000 / SearchWork::kPerSecond);
  options.seed = 3;
  return options;
}

int64_t PeakOf(const Simulation& simulation) {
  int64_t peak = 0;
  for (const RankFigures& rank : simulation.ranks) {
    peak = std::max<int64_t>(peak, rank.peak_activations);
  }
  return peak;
}

TEST_SUITE("unit") {
  TEST_CASE("what is searched lowered is shorter lowered than what is published") {
    const CostModel costs = LayerCosts();
    for (const int microbatches : {8, 16}) {
      CAPTURE(microbatches);
      const Plan dualpipe = GeneratePlan(MakeSpec("dualpipe", 4, microbatches, costs));
      const LowerOptions lower = {
          .target = Level::kComponent, .overlap = Overlap::kAll, .memory_limit = 5};
      const Plan published = Lower(dualpipe, costs, lower);
      const std::vector<Plan> orders = {dualpipe};
      const Plan plan = LowerShortest(dualpipe, orders, costs, lower, OptionsOf(1'500'000));
      CHECK(FindingsText(plan) == "");
      CHECK(plan.level == Level::kComponent);
      const Simulation simulation = Simulate(plan, costs);
      CHECK(PeakOf(simulation) <= 5);
      CHECK(simulation.makespan < Simulate(published, costs).makespan);
      CHECK(simulation.makespan >= ProveBound(plan, costs, 5).value);
      CHECK(plan == LowerShortest(dualpipe, orders, costs, lower, OptionsOf(1'500'000)));
    }
  }

  TEST_CASE("without time for a search the best of the published orders is lowered") {
    const CostModel costs = LayerCosts();
    const LowerOptions lower = {.target = Level::kComponent, .overlap = Overlap::kAll};
    Plan found = GeneratePlan(MakeSpec("gpipe", 4, 8, costs));
    const std::vector<Plan> orders = {GeneratePlan(MakeSpec("1f1b", 4, 8, costs)),
                                      GeneratePlan(MakeSpec("zb-1p", 4, 8, costs)),
                                      GeneratePlan(MakeSpec("dualpipe", 4, 8, costs))};
    std::optional<Time> least;
    for (const Plan& order : {found, orders[0], orders[1]}) {
      const Time makespan = Simulate(Lower(order, costs, lower), costs).makespan;
      if (!least || makespan < *least) least = makespan;
    }
    const Plan plan = LowerShortest(found, orders, costs, lower, OptionsOf(0));
    CHECK(Simulate(plan, costs).makespan == *least);
    CHECK(plan.schedule == "gpipe");
  }

  TEST_CASE("memory bounds what components can overlap") {
    const CostModel costs = LayerCosts();
    const Plan dualpipe = GeneratePlan(MakeSpec("dualpipe", 8, 16, costs));
    const Plan plan =
        Lower(dualpipe, costs, {.target = Level::kComponent, .overlap = Overlap::kAll});
    const Bound any = ProveBound(plan, costs), tight = ProveBound(plan, costs, 9);
    CHECK(tight.kind == BoundKind::kTwoWindows);
    CHECK(tight.value == tight.head + tight.work + tight.idle + tight.tail);
    // A quarter above; the plan is 7.2 % above it.
    CHECK(tight.value > any.value * 5 / 4);
    CHECK(Simulate(plan, costs).makespan < tight.value * 11 / 10);
    // With memory for all of them the forwards may all come first.
    CHECK(ProveBound(plan, costs, 16).value < tight.value);
  }
}

TEST_SUITE("property") {
  TEST_CASE("no lowered plan undercuts the bound for what it holds") {
    std::mt19937_64 random(11);
    int windows = 0, near = 0;
    constexpr std::string_view kSchedules[] = {"dualpipe", "dualpipe-v", "1f1b", "zb-1p", "v-half"};
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const int ranks = 2 + 2 * (round % 4);
      const Overlap overlap = round % 3 != 0 ? Overlap::kAll : Overlap::kPublished;
      const Spec spec = MakeSpec(kSchedules[round % 5], ranks, 2 * ranks + 2 * (round % 3),
                                 RandomMoeCosts(&random, 2, overlap));
      if (!FindSchedule(spec.schedule).reject(spec).empty()) continue;
      const Plan plan =
          Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComponent, .overlap = overlap});
      const Simulation simulation = Simulate(plan, spec.costs);
      const Bound bound = ProveBound(plan, spec.costs, PeakOf(simulation));
      CAPTURE(spec.schedule);
      CHECK(bound.value <= simulation.makespan);
      windows += bound.kind == BoundKind::kTwoWindows;
      near += simulation.makespan < bound.value * 11 / 10;
    }
    CHECK(windows > 3);
    CHECK((kSanitized || near > 3));
  }
}

}  // namespace
}  // namespace contraflow::lowered_search_test
