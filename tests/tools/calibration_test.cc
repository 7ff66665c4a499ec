#include "tools/contraflow-run/calibration.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::calibration_test {
namespace {

Plan PlanOf(const std::string& schedule, const CostModel& costs, Level level) {
  return Compile(MakeSpec(schedule, 4, 8, costs), {.level = level});
}

CostModel Components(unsigned seed) {
  std::mt19937 random(seed);
  CostModel costs;
  costs.unit = Unit::kMicroseconds;
  costs.comm.latency = 700;
  costs.moe.emplace().layers_per_stage = 2;
  for (const ComponentCost& component : kComponentCosts) {
    for (int layer = 0; layer < 2; ++layer) {
      ((*costs.moe).*component.times)
          .push_back(std::uniform_int_distribution<Time>(1'000, 90'000)(random));
    }
  }
  costs.stages = {StageCost{.reduce = 4'000, .step = 5'000}};
  DeriveChunkCosts(&costs, Overlap::kAll);
  return costs;
}

TEST_SUITE("unit") {
  TEST_CASE("calibration: components that were simulated come out as they went in") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (unsigned seed = 0; seed < 5; ++seed) {
        CAPTURES(schedule, seed);
        const CostModel costs = Components(seed);
        const Plan plan = PlanOf(schedule, costs, Level::kComponent);
        const Simulation simulation = Simulate(plan, costs);
        Calibration calibration(plan);
        calibration.Add(simulation.timeline);
        calibration.Add(simulation.timeline);
        CHECK(Simulate(plan, calibration.CostsOfPlan()).timeline.ranks ==
              simulation.timeline.ranks);
        Calibration::CheckPlan(plan);
        const CostModel back = calibration.CostsForCompiler("a test");
        CHECK(back.moe == costs.moe);
        CHECK(back.comm == costs.comm);
        CHECK(back.stages[0].fb == costs.stages[0].fb);
        CHECK(back.stages[0].step == 5'000);
        const CostModel read = ReadCosts(WriteCosts(back), "costs.json");
        CHECK(read == back);
        CHECK(Simulate(PlanOf(schedule, read, Level::kComponent), read).makespan ==
              Simulate(PlanOf(schedule, back, Level::kComponent), back).makespan);
      }
    }
  }

  TEST_CASE("calibration: chunks that were simulated come out as they went in") {
    CostModel costs = UniformCosts(3'000, 5'000, 2'000, 100);
    costs.stages.assign(4, costs.stages[0]);
    costs.stages[2] = {.f = 4'000, .b = 6'000, .w = 1'000, .bw = 7'000, .fb = 11'000};
    const Plan plan = PlanOf("zb-1p", costs, Level::kComm);
    const Simulation simulation = Simulate(plan, costs);
    Calibration calibration(plan);
    calibration.Add(simulation.timeline);
    const CostModel back = calibration.CostsForCompiler("a test");
    CHECK(back.comm == costs.comm);
    for (size_t s = 0; s < 4; ++s) {
      CHECK(back.stages[s].f == costs.stages[s].f);
      CHECK(back.stages[s].b == costs.stages[s].b);
      CHECK(back.stages[s].w == costs.stages[s].w);
    }
    CHECK(Simulate(plan, back).makespan == simulation.makespan);
  }

  TEST_CASE("calibration: one slow step moves no median and a wait no quartile") {
    const CostModel costs = Components(7);
    const Plan plan = PlanOf("1f1b", costs, Level::kComponent);
    Timeline timeline = Simulate(plan, costs).timeline;
    Calibration calibration(plan);
    for (int step = 0; step < 4; ++step) {
      Timeline now = timeline;
      if (step == 3) {
        for (auto& rank : now.ranks) {
          for (Span& span : rank) span.end += 1'000'000;
        }
      }
      calibration.Add(now);
    }
    CHECK(calibration.CostsForCompiler("a test").moe == costs.moe);
    calibration.Clear();
    calibration.Add(timeline);
    CHECK(calibration.CostsForCompiler("a test").moe == costs.moe);
  }

  TEST_CASE("calibration: a message counts where its receiver waited for it") {
    // Forwards wait for the last stages and backwards for the first ones, messages for all of them.
    CostModel costs = UniformCosts(0, 0, 0, 700);
    costs.unit = Unit::kMicroseconds;
    costs.stages.clear();
    for (const Time slower : {0, 1, 2, 3}) {
      const Time f = 10'000 + 10'000 * slower, b = 50'000 - 10'000 * slower;
      costs.stages.push_back({.f = f, .b = b, .w = b, .bw = 2 * b, .fb = f + 2 * b});
    }
    const Plan plan = PlanOf("gpipe", costs, Level::kComm);
    Timeline timeline = Simulate(plan, costs).timeline;
    int late = 0, messages = 0;
    for (size_t r = 0; r < timeline.ranks.size(); ++r) {
      std::vector<Span>& spans = timeline.ranks[r];
      for (size_t i = 0; i < spans.size(); ++i) {
        if (!IsMessage(plan.programs[r][i].op)) continue;
        ++messages;
        for (size_t k = 0; k < spans.size(); ++k) {
          const bool busy = !IsMessage(plan.programs[r][k].op) && spans[k].start < spans[i].end &&
                            spans[k].end > spans[i].start;
          if (!busy) continue;
          // It looked at its messages when it had done that.
          spans[i].end = spans[k].end;
          ++late;
          break;
        }
      }
    }
    REQUIRE(late > messages * 2 / 3);
    Calibration calibration(plan);
    calibration.Add(timeline);
    CHECK(calibration.CostsOfPlan().comm.latency == 700);
    const CommCost comm = calibration.Messages(1'000);
    CHECK(comm.bytes == 1'000);
    CHECK(comm.latency + comm.occupancy == doctest::Approx(700).epsilon(0.01));
    CHECK(Calibration(plan).Messages(1'000) == CommCost());
  }

  TEST_CASE("calibration: the mean of the middle half and quantiles") {
    CHECK(MiddleMean({}) == 0);
    CHECK(MiddleMean({7}) == 7);
    CHECK(MiddleMean({1, 3}) == 2);
    CHECK(MiddleMean({900, 2, 4, 0}) == 3);
    CHECK(Quantile({}, 0.5) == 0);
    CHECK(Quantile({5, 1, 3, 4, 2}, 0.5) == 3);
    CHECK(Quantile({5, 1, 3, 4, 2}, 0.25) == 2);
  }

  TEST_CASE("calibration: what a plan never does on its own cannot be told") {
    const Plan plan = PlanOf("1f1b", UniformCosts(1'000, 1'000, 1'000), Level::kComm);
    CHECK(Failure([&] { Calibration::CheckPlan(plan); }) ==
          "`calibrate`: the plan has no B on its own, so its cost cannot be measured; use a plan "
          "of zb-1p");
    // To simulate the plan itself it is not needed.
    Calibration calibration(plan);
    const Simulation simulation = Simulate(plan, *plan.costs);
    calibration.Add(simulation.timeline);
    CHECK(Simulate(plan, calibration.CostsOfPlan()).makespan == simulation.makespan);
  }
}

}  // namespace
}  // namespace contraflow::calibration_test
