#include "tools/contraflow-run/times.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/support/support.h"

namespace contraflow::times_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("replay: steps as they were simulated take as long again") {
    std::mt19937_64 random(3);
    const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
    for (const Level level : {Level::kComm, Level::kComponent}) {
      for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
        CAPTURE(schedule);
        const Plan plan = Compile(MakeSpec(schedule, 2, 4, costs), {.level = level});
        Timeline step = Simulate(plan, *plan.costs).timeline;
        Replay replay(plan, true);
        RunTimes measured;
        for (int slower = 1; slower <= 3; ++slower) {
          replay.Add(step);
          AddTimes(plan, step, &measured);
          // When a step begins changes nothing.
          const Time by = 1'000'000 * slower;
          for (auto& spans : step.ranks) {
            for (Span& span : spans) span = {span.start + by, span.end + by};
          }
        }
        const RunTimes again = replay.Times(*plan.costs);
        CHECK(again.steps == 3);
        CHECK(again.busy == measured.busy);
        CHECK(again.makespan(plan) == measured.makespan(plan));
        CHECK(again.bound > 0);
        replay.Clear();
        replay.Add(step);
        CHECK(replay.Times(*plan.costs).steps == 1);
      }
    }
  }

  TEST_CASE("replay: where one thing runs after the other exchanges are part of the compute") {
    CostModel costs;
    costs.unit = Unit::kMicroseconds;
    costs.moe.emplace().layers_per_stage = 2;
    for (const ComponentCost& component : kComponentCosts) {
      ((*costs.moe).*component.times).assign(2, 10'000);
    }
    const Plan plan = Compile(MakeSpec("1f1b", 1, 3, costs), {.level = Level::kComponent});
    // Timeline of a CPU.
    Timeline step = Simulate(plan, *plan.costs).timeline;
    Time now = 0, exchanges = 0;
    for (size_t i = 0; i < plan.programs[0].size(); ++i) {
      const Time length = step.ranks[0][i].end - step.ranks[0][i].start;
      if (WorkOf(plan.programs[0][i].op) == Work::kAllToAll) exchanges += length;
      step.ranks[0][i] = {now, now + length};
      now += length;
    }
    REQUIRE(exchanges > 0);
    Replay beside(plan, true), serial(plan, false);
    beside.Add(step);
    serial.Add(step);
    CHECK(beside.Times(*plan.costs).makespan(plan) < now);
    CHECK(serial.Times(*plan.costs).makespan(plan) == now);
    CHECK(serial.Times(*plan.costs).busy == now - exchanges);
  }
}

}  // namespace
}  // namespace contraflow::times_test
