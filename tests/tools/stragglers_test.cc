#include "tools/contraflow-run/stragglers.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "compiler/lower/interleave.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/support/support.h"

namespace contraflow::stragglers_test {
namespace {

Plan PlanOf(const std::string& schedule, Level level) {
  CostModel costs = UniformCosts(30'000, 50'000, 20'000, 100);
  costs.stages.assign(schedule == "zb-v" ? 8 : 4, costs.stages[0]);
  // The embedding and the head.
  costs.stages[0].f = 50'000;
  costs.stages.back() = {.f = 50'000, .b = 80'000, .w = 40'000, .bw = 120'000, .fb = 170'000};
  if (level == Level::kComponent) {
    costs.moe.emplace().layers_per_stage = 2;
    for (const ComponentCost& component : kComponentCosts) {
      (*costs.moe.*component.times).assign(2, 10'000);
    }
    costs.stages = {StageCost{.reduce = 4'000, .step = 5'000}};
    DeriveChunkCosts(&costs, Overlap::kAll);
  }
  return Compile(MakeSpec(schedule, 4, 8, costs), {.level = level});
}

/// N steps, each with instructions that take `factor` times as long.
std::vector<Straggler> Find(
    const Plan& plan, int steps,
    const std::function<double(int step, size_t rank, const Instruction&)>& factor,
    const std::vector<int>& layers = {}) {
  Stragglers stragglers(plan, layers);
  const Timeline timeline = Simulate(plan, *plan.costs).timeline;
  for (int step = 0; step < steps; ++step) {
    Timeline now = timeline;
    for (size_t r = 0; r < now.ranks.size(); ++r) {
      for (size_t i = 0; i < now.ranks[r].size(); ++i) {
        Span& span = now.ranks[r][i];
        const auto time = static_cast<double>(span.end - span.start);
        span.end = span.start + static_cast<Time>(time * factor(step, r, plan.programs[r][i]));
      }
    }
    stragglers.Add(now);
  }
  return stragglers.Find();
}

const std::pair<const char*, Level> kPlans[] = {{"1f1b", Level::kComm},
                                                {"zb-v", Level::kComm},
                                                {"dualpipe", Level::kComm},
                                                {"1f1b", Level::kComponent},
                                                {"dualpipe", Level::kComponent}};

TEST_SUITE("unit") {
  TEST_CASE("stragglers: a slow rank is named with how much") {
    for (const auto& [schedule, level] : kPlans) {
      CAPTURE(schedule);
      const Plan plan = PlanOf(schedule, level);
      const auto found = Find(
          plan, 3, [](int, size_t rank, const Instruction&) { return rank == 2 ? 1.23 : 1.0; });
      REQUIRE(found.size() == 1);
      CHECK(found[0].rank == 2);
      CHECK(found[0].slower == doctest::Approx(0.23).epsilon(0.01));
      CHECK(FormatStragglers(found) == "slower than the others: rank 2 (+23 %)\n");
    }
  }

  TEST_CASE("stragglers: equal ranks, a slow step, slow messages and slow outliers are none") {
    for (const auto& [schedule, level] : kPlans) {
      CAPTURE(schedule);
      const Plan plan = PlanOf(schedule, level);
      const auto none = std::vector<Straggler>{};
      CHECK(Find(plan, 0, [](int, size_t, const Instruction&) { return 1.0; }) == none);
      CHECK(Find(plan, 3, [](int, size_t, const Instruction&) { return 1.0; }) == none);
      CHECK(Find(plan, 3, [](int, size_t rank, const Instruction&) {
              return rank == 2 ? 1.09 : 1.0;
            }) == none);
      CHECK(Find(plan, 24, [](int step, size_t rank, const Instruction&) {
              return rank == 2 && step < 8 ? 9.0 : 1.0;
            }) == none);
      CHECK(Find(plan, 3, [](int, size_t rank, const Instruction& i) {
              const Work work = WorkOf(i.op);
              return rank == 2 && work != Work::kCompute && work != Work::kComponent ? 9.0 : 1.0;
            }) == none);
      if (plan.schedule == "dualpipe") continue;  // has chunks outside pairs but once
      CHECK(Find(plan, 3, [](int, size_t rank, const Instruction& i) {
              return rank == 2 && i.microbatch != 3 ? 9.0 : 1.0;
            }) == none);
    }
  }

  TEST_CASE("stragglers: stages of more layers take longer") {
    const Plan plan = PlanOf("1f1b", Level::kComm);
    const auto more = [](int, size_t rank, const Instruction&) { return rank == 1 ? 1.5 : 1.0; };
    CHECK(Find(plan, 3, more).size() == 1);
    CHECK(Find(plan, 3, more, {2, 3, 2, 2}).empty());
    const auto slow = [](int, size_t rank, const Instruction&) { return rank == 1 ? 3 : 1.5; };
    CHECK(Find(plan, 3, slow, {2, 3, 3, 2}).size() == 1);
  }

  TEST_CASE("stragglers: after thousands of steps the newest count") {
    const Plan plan = PlanOf("1f1b", Level::kComm);
    const auto found = Find(plan, 1600, [](int step, size_t rank, const Instruction&) {
      return step >= 900 && rank == 1 ? 1.5 : 1.0;
    });
    REQUIRE(found.size() == 1);
    CHECK(found[0].rank == 1);
    Json document = Json::object();
    StragglersToJson(found, &document);
    CHECK(document["stragglers"].size() == 1);
    CHECK(document["stragglers"][0]["rank"] == 1);
  }
}

}  // namespace
}  // namespace contraflow::stragglers_test
