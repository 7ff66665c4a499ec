// List scheduling with copies: whatever the rules, its programs are sound, never hold more than the
// limit, and run no later than it says.

#include "schedules/recompute/offload_list.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/offload_rules.h"
#include "schedules/search/search.h"
#include "tests/support/exact_instance.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::offload_list_test {
namespace {

TEST_SUITE("property") {
  TEST_CASE("offload list: sound, within its limits and no later than it says, by any rules") {
    std::mt19937_64 random(31);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    ExactInstances instances(32);
    int made = 0, tight = 0, offloads = 0, standstills = 0;
    while (made < CasesToDraw(3000)) {
      ExactInstance instance = instances.Next();
      CostModel& costs = instance.costs;
      costs.host = HostCost{.latency = draw(0, 20)};
      if (draw(0, 3) > 0) {
        costs.memory = MemoryCost{.activation_bytes = 10};
        costs.memory->w_stash_bytes = draw(0, 10);
      }
      // One message at a time is beyond it: it knows of no queues.
      costs.comm.bandwidth = 0;
      const Plan& frame = instance.plan;
      const MemoryLimit memory(costs);
      const int64_t most = 3 * memory.largest();
      std::vector<int64_t> limits;
      for (int r = 0; r < frame.ranks; ++r) limits.push_back(draw(memory.largest(), most));
      std::vector<OffloadRule> rules;
      const bool sure = draw(0, 1) == 0;
      for (int r = 0; r < frame.ranks; ++r) {
        rules.push_back({.ahead = static_cast<int>(draw(1, 8)),
                         .kept = static_cast<int>(draw(0, 2)),
                         .waiting = static_cast<int>(draw(1, 4)),
                         .waiting_f = static_cast<int>(draw(1, 4)),
                         .lead = static_cast<int>(draw(4, 16)),
                         .patience = static_cast<int>(draw(0, 4)),
                         .reserves = draw(0, 1) == 0,
                         .sure = sure || draw(0, 1) == 0});
      }
      CAPTURES(instance.Describe(), made);
      OffloadList list(frame, costs, limits);
      ++made;
      if (!list.Run(rules)) {
        CHECK(!sure);
        ++standstills;
        continue;
      }
      Plan plan = frame;
      plan.programs = list.programs();
      REQUIRE(FindingsText(plan) == "");
      const Simulation run = Simulate(plan, costs);
      CHECK(run.makespan <= list.makespan());
      CHECK(BoundOfOffloaded(frame, costs, std::ranges::max(limits)).value <= run.makespan);
      bool full = false;
      for (size_t r = 0; r < limits.size(); ++r) {
        CHECK(memory.Peak(run.ranks[r]) <= limits[r]);
        full = full || memory.Peak(run.ranks[r]) == limits[r];
      }
      tight += full;
      offloads += OffloadedCells(plan).any();
      const std::vector<Program> programs = list.programs();
      CHECK(list.Run(rules));
      CHECK(list.programs() == programs);
    }
    MESSAGE(made << " lists, " << offloads << " with copies, " << tight << " fill a limit, "
                 << standstills << " come to nothing");
    CHECK(offloads > made / 2);
    CHECK(tight > made / 4);
    CHECK(standstills < made / 4);
    CHECK(standstills > 0);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("offload list: searched rules reach the bound of a small instance") {
    CostModel costs = UniformCosts(100, 100, 100, 5);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 450, .input_bytes = 60};
    costs.host = HostCost{.latency = 50};
    Spec spec = MakeSpec("auto", 4, 8, costs);
    const Plan frame = SingleRoutePlan(spec, LinearPlacement(4));
    const std::vector<int64_t> limits(4, 2000);
    spec.search.budget = 400'000'000;
    SearchWork work(spec.search);
    const Plan plan = SearchOffloadRules(frame, costs, limits, 2830, 0, &work);
    CHECK(FindingsText(plan) == "");
    CHECK(Simulate(plan, costs).makespan == 2830);
    CHECK(!work.spent());
    // Not one activation fits.
    SearchWork in_vain(spec.search);
    CHECK(SearchOffloadRules(frame, costs, {999, 999, 999, 999}, 0, 0, &in_vain).programs.empty());
    // The same by `auto`, with recompute or without, every time.
    spec.search.placement = Placement::kLinear;
    spec.memory_limit = 2000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    for (const Recompute::Choice choice : {Recompute::Choice::kNone, Recompute::Choice::kAuto}) {
      spec.recompute.choice = choice;
      const Plan searched = Compile(spec);
      CHECK(FindingsText(searched) == "");
      CHECK(Simulate(searched, costs).makespan == 2830);
      REQUIRE(searched.provenance);
      CHECK(searched.provenance->bound == 2830);
      CHECK(searched.provenance->from == "list scheduling with copies");
      CHECK(Compile(spec).programs == searched.programs);
    }
  }
}

}  // namespace
}  // namespace contraflow::offload_list_test
