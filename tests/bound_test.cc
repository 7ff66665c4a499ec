#include "compiler/bound.h"

#include <doctest/doctest.h>

#include <random>

#include "compiler/interleave.h"
#include "compiler/passes.h"
#include "compiler/simulate.h"
#include "schedules/registry.h"
#include "tests/failure.h"
#include "tests/support.h"

namespace contraflow {
namespace {

/// A plan of level comm, of the schedules in turn, with random components.
Plan RandomCommPlan(std::mt19937_64* random, int round, Overlap overlap) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const Schedule& schedule = *Schedules()[static_cast<size_t>(round) % Schedules().size()];
  for (;;) {
    Spec spec = MakeSpec(schedule.name, draw(1, 6), draw(1, 12), {});
    if (!schedule.reject(spec).empty()) continue;
    spec.costs = RandomMoeCosts(random, 3, overlap);
    if (draw(0, 2) == 0) {
      for (int m = 0; m < spec.microbatches; ++m) {
        spec.costs.microbatch_scale.push_back(draw(1, 30) / 10.0);
      }
    }
    Plan plan = InsertCommunication(GeneratePlan(spec), spec.costs);
    plan.costs = spec.costs;
    return plan;
  }
}

/// Components of `layers` layers: c each on the compute lane, x each on the all-to-all lane.
CostModel TwoCosts(int layers, Time c, Time x) {
  CostModel costs;
  costs.moe = MoeCost{};
  costs.moe->layers_per_stage = layers;
  for (const ComponentCost& component : kComponentCosts) {
    const bool all_to_all = WorkOf(component.op) == Work::kAllToAll;
    (*costs.moe.*component.times) = {all_to_all ? x : c};
  }
  DeriveChunkCosts(&costs, Overlap::kAll);
  return costs;
}

Plan Components(const Spec& spec) {
  return ExpandComponents(InsertCommunication(GeneratePlan(spec), spec.costs), spec.costs,
                          Overlap::kAll, std::nullopt);
}

TEST_SUITE("property") {
  TEST_CASE("no simulated plan of components is shorter than its bound") {
    std::mt19937_64 random(41);
    int reached = 0, cases = 0;
    double gap = 0;
    for (int round = 0; round < 400; ++round) {
      const Overlap overlap = round % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      const Plan chunks = RandomCommPlan(&random, round / 2, overlap);
      const CostModel& costs = *chunks.costs;
      CAPTURE(round);
      CAPTURE(chunks.schedule);
      CHECK(LowerBound(chunks, costs) <= Simulate(chunks, costs).makespan);
      // Memory enough that it is not what keeps a plan from its bound.
      const Plan plan = ExpandComponents(chunks, costs, overlap, int64_t{1} << 40);
      const Time makespan = Simulate(plan, costs).makespan;
      const Time bound = LowerBound(plan, costs);
      CHECK(bound <= makespan);
      if (overlap == Overlap::kPublished || bound == 0) continue;
      ++cases;
      reached += bound == makespan;
      gap += static_cast<double>(makespan - bound) / static_cast<double>(bound);
    }
    MESSAGE("the bound is reached by " << reached << " of " << cases << " plans, and "
                                       << 100 * gap / cases << " % below on average");
    // A bound that is never near could be far too low without anybody noticing.
    CHECK(reached > 2);
    CHECK(gap / cases < 0.3);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("the bound of a plan of components by hand") {
    // One micro-batch and one rank: both chains, then the weight part of the first attention.
    CostModel costs = TwoCosts(2, 3, 5);
    Plan plan = Components(MakeSpec("gpipe", 1, 1, costs));
    CHECK(LowerBound(plan, costs) == 4 * (3 + 5) + 4 * (3 + 5) + 3);
    CHECK(Simulate(plan, costs).makespan == LowerBound(plan, costs));
    // Two ranks: all of that on either, and a hop both ways.
    costs.comm.latency = 7;
    plan = Components(MakeSpec("gpipe", 2, 1, costs));
    CHECK(LowerBound(plan, costs) == 2 * 64 + 3 + 2 * 7);
    // Two stages of one rank: no hop between them.
    plan = PlanFromText("route 0 0 : 0\nrank\n F s0 m0\n F s1 m0\n BW s1 m0\n BW s0 m0\n");
    plan = ExpandComponents(InsertCommunication(plan, costs), costs, Overlap::kAll, std::nullopt);
    CHECK(LowerBound(plan, costs) == 2 * 64 + 3);
    // Many micro-batches: the all-to-all lane of the last rank is never idle, but for the forward
    // of stage 0 and its own first attention, and its last attention gradient and the way back.
    costs.comm.latency = 0;
    plan = Components(MakeSpec("1f1b", 2, 100, costs));
    CHECK(LowerBound(plan, costs) == (32 + 3) + 100 * 8 * 5 + (3 + 32 + 3));
    // Compute-heavy: the compute lane of the last rank, with no tail behind its weight parts.
    costs = TwoCosts(2, 5, 1);
    plan = Components(MakeSpec("1f1b", 2, 100, costs));
    CHECK(LowerBound(plan, costs) == 24 + 100 * 12 * 5);
  }

  TEST_CASE("a bound of other layers than the plan's is refused") {
    const CostModel costs = TwoCosts(2, 3, 5);
    const Plan plan = Components(MakeSpec("1f1b", 2, 4, costs));
    CHECK(Failure([&] { LowerBound(plan, TwoCosts(3, 3, 5)); }) ==
          "the costs have 3 layers a stage (\"layers_per_stage\"), this plan has 2");
    CHECK(Failure([&] { LowerBound(plan, UniformCosts(1, 1, 1)); }) ==
          "this plan has 2 layers a stage, and the costs have no components; give costs with "
          "\"moe\"");
  }
}

}  // namespace
}  // namespace contraflow
