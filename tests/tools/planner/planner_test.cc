#include "tools/planner/planner.h"

#include <doctest/doctest.h>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "tests/tools/planner/planner_support.h"
#include "tools/planner/estimate.h"

namespace contraflow::planner_test {
namespace {

/// All rows of a request with the schedule 1F1B, whose plans need no search.
PlanRequest Exhaustive(PlanRequest request) {
  request.schedules = {"1f1b"};
  request.top = 1000;
  request.budget = 1'000'000'000'000;
  return request;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("planner: the first row is the shortest of all, bounds hold, plans fit") {
  for (const PlanRequest& small : {SmallMoe(8), SmallDense(8)}) {
    const PlanRequest request = Exhaustive(small);
    const PlannerResult every = FindPlans(request);
    REQUIRE(every.rows.size() > 10);
    Time shortest = INT64_MAX;
    PlannerCosts costs(request);
    for (const PlannerRow& row : every.rows) {
      shortest = std::min(shortest, row.step);
      CHECK(Verify(row.plan).empty());
      CHECK(row.step == Simulate(row.plan, *row.plan.costs).makespan);
      const Estimate estimate = costs.EstimateOf(row.configuration);
      CHECK(estimate.bound <= row.step);
      const std::vector<MemoryFigures> ranks = MemoryOf(row.plan, *row.plan.costs);
      CHECK(estimate.fixed <= std::ranges::max(ranks, {}, &MemoryFigures::fixed).fixed());
      CHECK(row.memory.total() <= request.gpu.memory);
      CHECK(row.mfu > 0);
      CHECK(row.mfu < 0.65);  // the efficiency of matmuls
      double parts = 0;
      for (const auto& part : row.parts) parts += part.second;
      CHECK(parts == doctest::Approx(1));
    }
    CHECK(every.rows.front().step == shortest);
    // Each configuration alone, dropped ones included.
    Rejected rejected;
    for (const Configuration& each : ConfigurationsOf(request, &rejected)) {
      PlanRequest fixed = request;
      fixed.fixed = {{"tp", each.tp},   {"cp", each.cp}, {"ep", each.ep},
                     {"etp", each.etp}, {"pp", each.pp}, {"micro-batch", each.micro_batch}};
      const PlannerResult alone = FindPlans(fixed);
      REQUIRE(alone.rows.size() == 1);
      CHECK(alone.rows[0].configuration == each);
      CHECK(alone.rows[0].step >= shortest);
      CHECK(costs.EstimateOf(each).bound <= alone.rows[0].step);
    }
  }
}

TEST_CASE("planner: the search has few rows, the best of which is no longer than 1F1B") {
  PlanRequest request = SmallDense(8);
  request.top = 3;
  const PlannerResult found = FindPlans(request), again = FindPlans(request);
  REQUIRE(found.rows.size() == 3);
  CHECK(found.rows.front().step <= FindPlans(Exhaustive(request)).rows.front().step);
  for (size_t i = 0; i < found.rows.size(); ++i) CHECK(found.rows[i].plan == again.rows[i].plan);
}

TEST_CASE("planner: less memory makes no step shorter, and at last nothing fits") {
  PlanRequest request = Exhaustive(SmallDense(4));
  Time before = 0;
  for (const int64_t memory :
       {int64_t{80'000'000'000}, int64_t{2'000'000'000}, int64_t{1'100'000'000}}) {
    request.gpu.memory = memory;
    const PlannerResult result = FindPlans(request);
    CHECK(result.rows.front().step >= before);
    for (const PlannerRow& row : result.rows) CHECK(row.memory.total() <= memory);
    before = result.rows.front().step;
  }
  request.gpu.memory = 100'000'000;
  CHECK_THROWS_AS(FindPlans(request), Error);
}

TEST_CASE("planner: FLOPs of a step are six times the parameters that a token meets") {
  const PlanRequest request = SmallDense(4);
  // Matmuls and head, then attention: 2 products, half of the sequence.
  const double layer = 1024.0 * (1024 + 2 * 256 + 1024) + 3 * 1024.0 * 4096;
  const double attention = 2.0 * 2 * 16 * 64 * 1024 / 2;
  const double token = 6 * (8 * layer + 1024.0 * 32000) + 3 * 8 * attention;
  CHECK(ModelFlops(request) == doctest::Approx(token * 96 * 1024).epsilon(0.001));
}

TEST_SUITE_END();

}  // namespace contraflow::planner_test
