// Stashes that may wait for W when the last B of a rank runs (compiler/bound/stash.cc).

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "compiler/bound/bound.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/recompute.h"
#include "schedules/report.h"
#include "tests/support/exact_instance.h"
#include "tests/support/exact_search.h"
#include "tests/support/offload_all.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::bound_stash_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("stashes: the bound of an example worked out by hand") {
    CostModel costs = UniformCosts(100, 100, 100, 5);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 450};
    costs.host = HostCost{.latency = 50};
    const Plan frame = SingleRoutePlan(MakeSpec("", 4, 8, costs), LinearPlacement(4));
    // In addition to its activation there are two stashes, so that 5 of the 8 W of the last rank
    // have ended when its last B has. Three hops down, 8 F, 8 B and 5 W, three hops up and the W of
    // rank 0.
    const Bound bound = BoundOfOffloaded(frame, costs, 2000);
    CHECK(Name(bound.kind) == "stashes");
    CHECK(bound.rank == 3);
    CHECK(bound.head == 315);
    CHECK(bound.work == 2100);
    CHECK(bound.tail == 415);
    CHECK(bound.value == 2830);
    // The same for a plan that offloads; without, the limit is one for activations too.
    const Plan serial = SerialOrder(frame);
    CHECK(ProveBound(OffloadAll(serial), costs, 2000).value == 2830);
    CHECK(ProveBound(serial, costs, 2000).value > 2830);
    CHECK(BoundOfOffloaded(frame, costs, std::nullopt).value == LowerBound(frame, costs));
    // Room for all stashes, and for no activation.
    CHECK(BoundOfOffloaded(frame, costs, 4150).value == LowerBound(frame, costs));
    CHECK(BoundOfOffloaded(frame, costs, 999).value == LowerBound(frame, costs));
  }

  TEST_CASE("stashes: a plan that misses its limit has a bound that it can be shorter than") {
    CostModel costs = UniformCosts(100, 100, 100, 5);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 1000};
    costs.host = HostCost{.latency = 0};
    Spec spec = MakeSpec("zb-1p", 4, 8, costs);
    const Plan plan = OffloadAll(GeneratePlan(spec));
    const Report report = MakeReport(plan, costs, 1000);
    REQUIRE(report.peak_bytes() > 1000);
    CHECK(ProveBound(plan, costs, 1000).value > report.simulation.makespan);
    CHECK(report.bound.value <= report.simulation.makespan);
  }
}

TEST_SUITE("property") {
  TEST_CASE("stashes: no bound is above the optimum of a tiny instance that offloads") {
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(400));
    ExactInstances instances(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 1)));
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 1)));
    int compared = 0, decided = 0, reached = 0, reached_by_stashes = 0, recomputed = 0;
    while (compared < wanted) {
      ExactInstance instance = instances.Next();
      CostModel& costs = instance.costs;
      if (random() % 4 > 0) {
        costs.memory = MemoryCost{.activation_bytes = 10, .input_bytes = 1};
        costs.memory->w_stash_bytes = static_cast<int64_t>(random() % 11);
        if (random() % 2 == 0) {
          for (int s = 0; s < instance.plan.stages; ++s) {
            costs.memory->activation_of.push_back(10 + static_cast<int64_t>(random() % 11));
            costs.memory->stash_of.push_back(static_cast<int64_t>(random() % 11));
          }
          costs.memory->w_stash_bytes = std::ranges::min(costs.memory->stash_of);
        }
      }
      const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
      const int64_t whole = bytes ? costs.memory->activation_bytes : 1;
      const int64_t limit =
          whole + static_cast<int64_t>(random() % static_cast<uint64_t>(2 * whole + 1));
      Plan order = SerialOrder(instance.plan);
      const bool again = bytes && costs.memory->input_bytes > 0 && random() % 4 == 0;
      if (again) order = InsertRecompute(order, {0});
      CAPTURES(instance.Describe(), limit, again, compared);
      const ExactResult exact = ExactOffloaded(order, costs, limit, 5'000);
      if (!exact.finished || !exact.makespan) continue;
      costs.host = HostCost{.latency = 0};
      const Bound bound = ProveBound(OffloadAll(order), costs, limit);
      CHECK(bound.value <= *exact.makespan);
      const Bound any = BoundOfOffloaded(instance.plan, costs, limit);
      CHECK(any.value <= *exact.makespan);
      if (!again) CHECK(any.value == bound.value);
      ++compared;
      recomputed += again;
      decided += bound.kind == BoundKind::kStashes;
      reached += bound.value == *exact.makespan;
      reached_by_stashes += bound.kind == BoundKind::kStashes && bound.value == *exact.makespan;
    }
    MESSAGE("stashes decide " << decided << " of " << compared << " bounds (" << recomputed
                              << " with recompute), " << reached << " are the optimum, "
                              << reached_by_stashes << " of these by stashes");
    CHECK(decided > compared / 20);
    CHECK(reached_by_stashes > 0);
  }
}

}  // namespace
}  // namespace contraflow::bound_stash_test
