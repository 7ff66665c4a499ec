// Savings of pairs that a rank never makes.

#include <doctest/doctest.h>

#include "compiler/bound/bound.h"
#include "schedules/published/placement.h"
#include "tests/support/exact_search.h"
#include "tests/support/support.h"

namespace contraflow::rank_window_test {
namespace {

/// Two stages on one rank of which the second alone lets pairs save, `saving` each.
CostModel SecondSaves(Time saving) {
  CostModel costs = UniformCosts(2, 2, 2);
  costs.stages.resize(2, costs.stages.front());
  costs.stages[1].fb -= saving;
  return costs;
}

TEST_SUITE("unit") {
  TEST_CASE("of the chunks that save, the last backward is in no pair, and no more is lost") {
    for (const int count : {2, 3, 4}) {
      const CostModel costs = SecondSaves(2);
      const Spec spec = MakeSpec("", 1, count, costs);
      const Plan plan = SingleRoutePlan(spec, {0, 0});
      const Time least = 2 * 6 * count - 2 * (count - 1);
      CAPTURE(count);
      CHECK(ProveBound(plan, costs).value == least);
      const ExactResult exact = ExactMakespan(plan, costs, {}, 200'000);
      REQUIRE(exact.finished);
      CHECK(*exact.makespan == least);
    }
  }

  TEST_CASE("what fills a window loses what it would save, of stages that can be there") {
    // Rank 1 waits for the first backward, which comes from the ranks after it. Its work until then
    // is in no pair.
    CostModel costs = UniformCosts(4, 4, 4);
    costs.stages.resize(3, costs.stages.front());
    for (StageCost& stage : costs.stages) stage.fb -= 4;
    costs.stages[2] = {.f = 40, .b = 40, .w = 1, .bw = 41, .fb = 81};
    for (const int count : {2, 3}) {
      const Spec spec = MakeSpec("", 2, count, costs);
      const Plan plan = SingleRoutePlan(spec, {0, 1, 0});
      const ExactResult exact = ExactMakespan(plan, costs, {}, 400'000);
      REQUIRE(exact.finished);
      CAPTURE(count);
      CHECK(ProveBound(plan, costs).value <= *exact.makespan);
      CHECK(ProveBound(plan, costs).value >= *exact.makespan - 8);
    }
  }
}

}  // namespace
}  // namespace contraflow::rank_window_test
