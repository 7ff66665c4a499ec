#include "tests/support/exact_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tests/support/exact_instance.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::exact_search_test {
namespace {

constexpr int64_t kEnough = 50'000;

/// The optimum of a linear placement.
std::optional<Time> Optimum(int ranks, int microbatches, const CostModel& costs,
                            std::optional<int64_t> limit = std::nullopt) {
  const Spec spec = MakeSpec("linear", ranks, microbatches, costs);
  const Plan plan = SingleRoutePlan(spec, LinearPlacement(ranks));
  const ExactResult exact = ExactMakespan(plan, costs, limit, kEnough);
  CHECK(exact.finished);
  return exact.makespan;
}

/// Appends random instructions that may come next until all are there, at most `limit` activations
/// on a rank; false where it gets stuck.
bool Complete(Plan* plan, int64_t limit, std::mt19937_64* random) {
  const auto stages = static_cast<size_t>(plan->stages);
  const auto micro = static_cast<size_t>(plan->microbatches);
  std::vector<int> done(stages * micro, 0);
  std::vector<int64_t> held(static_cast<size_t>(plan->ranks), 0);
  for (;;) {
    struct Next {
      Op op;
      int s, m;
    };
    std::vector<Next> next;
    for (const Route& route : plan->routes) {
      for (const int m : route.microbatches) {
        for (int s = 0; s < plan->stages; ++s) {
          const auto at = [&](int stage) {
            return done[static_cast<size_t>(stage) * micro + static_cast<size_t>(m)];
          };
          const auto rank = static_cast<size_t>(route.ranks[static_cast<size_t>(s)]);
          if (at(s) == 0 && (s == 0 || at(s - 1) > 0) && held[rank] < limit) {
            next.push_back({Op::F, s, m});
          }
          if (at(s) == 1 && (s + 1 == plan->stages || at(s + 1) > 1)) {
            next.push_back({Op::B, s, m});
            next.push_back({Op::BW, s, m});
          }
          if (at(s) == 2) next.push_back({Op::W, s, m});
        }
      }
    }
    if (next.empty()) break;
    const auto [op, s, m] = next[(*random)() % next.size()];
    const Route& route =
        plan->routes[static_cast<size_t>(RouteOfMicrobatch(*plan)[static_cast<size_t>(m)])];
    const auto rank = static_cast<size_t>(route.ranks[static_cast<size_t>(s)]);
    plan->programs[rank].push_back(CellOp(op, s, m));
    done[static_cast<size_t>(s) * micro + static_cast<size_t>(m)] = op == Op::F   ? 1
                                                                    : op == Op::B ? 2
                                                                                  : 3;
    held[rank] += op == Op::F ? 1 : op == Op::B ? 0 : -1;
  }
  return std::ranges::all_of(done, [](int d) { return d == 3; });
}

TEST_SUITE("unit") {
  TEST_CASE("optima by hand") {
    // One rank has nothing to wait for.
    CHECK(Optimum(1, 3, UniformCosts(1, 2, 3)) == 18);
    // One micro-batch: both ways, then the weight gradient of stage 0.
    CHECK(Optimum(3, 1, UniformCosts(1, 2, 3, 10)) == 3 * 3 + 4 * 10 + 3);
    // Like ZB-1P: (P - 1) F of fill, and W in the gaps.
    CHECK(Optimum(3, 4, UniformCosts(1, 1, 1)) == 2 + 4 * 3);
    // One activation: the next micro-batch enters when the weight gradient has left.
    CHECK(Optimum(2, 2, UniformCosts(1, 1, 1), 1) == 2 * 5);
    // Two of three: the first two are together, the third is alone.
    CHECK(*Optimum(3, 3, UniformCosts(1, 1, 1), 2) > *Optimum(3, 3, UniformCosts(1, 1, 1), 3));
    // A full backward in one go that saves time.
    CostModel costs = UniformCosts(2, 3, 3);
    costs.stages[0].bw = 4;
    CHECK(Optimum(1, 2, costs) == 2 * 6);
    // F0, then F1 with the backward of 0, then the backward of 1.
    costs = UniformCosts(2, 2, 2);
    costs.stages[0].fb = 4;
    CHECK(Optimum(1, 2, costs) == 2 + 4 + 4);
    // Two messages of ten, one at a time, over the only edge; then the way back of the second.
    costs = UniformCosts(1, 1, 0);
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = 10;
    CHECK(Optimum(2, 2, costs) == 1 + 20 + 2 + 10 + 1);
  }

  TEST_CASE("nothing fits where one micro-batch does not") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const Plan plan = SingleRoutePlan(MakeSpec("V", 2, 2, costs), VPlacement(2));
    CHECK(!ExactMakespan(plan, costs, 1, kEnough).makespan);
    CHECK(ExactMakespan(plan, costs, 2, kEnough).makespan);
    CHECK(!ExactMakespan(plan, costs, std::nullopt, 10).finished);
  }

  TEST_CASE("no random schedule is shorter than the optimum and some are as short") {
    std::mt19937_64 random(3);
    ExactInstances instances(9);
    int reached = 0, compared = 0;
    while (compared < 30) {
      ExactInstance instance = instances.Next();
      // The random orders count activations and make no pairs.
      if (instance.costs.memory || instance.kind == "pairs") continue;
      if (instance.plan.stages * instance.plan.microbatches > 6) continue;
      const ExactResult exact =
          ExactMakespan(instance.plan, instance.costs, instance.limit, kEnough);
      REQUIRE(exact.finished);
      CAPTURE(instance.Describe());
      Time best = *exact.makespan * 10;
      for (int round = 0; round < CasesToDraw(400); ++round) {
        Plan plan = instance.plan;
        if (!Complete(&plan, instance.limit.value_or(1000), &random)) continue;
        const Time makespan = Simulate(plan, instance.costs).makespan;
        CHECK(makespan >= *exact.makespan);
        best = std::min(best, makespan);
      }
      ++compared;
      reached += best == *exact.makespan;
    }
    // Were the search to leave out schedules, most optima would not be reached, but undercut.
    CHECK((kSanitized || reached > compared / 3));
    MESSAGE("random orders reach the optimum of " << reached << " of " << compared);
  }

  TEST_CASE("no published schedule is shorter than the optimum for its memory") {
    std::mt19937_64 random(4);
    int compared = 0;
    for (const Spec& spec : RandomSpecs(&random, CasesToDraw(200), 3, 4)) {
      const Plan plan = GeneratePlan(spec);
      if (plan.stages * plan.microbatches > 9) continue;
      const Simulation simulation = Simulate(plan, spec.costs);
      int64_t limit = 0;
      const bool bytes = spec.costs.memory && spec.costs.memory->activation_bytes > 0;
      for (const RankFigures& rank : simulation.ranks) {
        limit = std::max(limit, bytes ? rank.peak_bytes : rank.peak_activations);
      }
      CAPTURE(spec.schedule);
      for (const std::optional<int64_t> most : {std::optional(limit), std::optional<int64_t>()}) {
        const ExactResult exact = ExactMakespan(plan, spec.costs, most, 20'000);
        if (!exact.finished) continue;
        REQUIRE(exact.makespan);
        CHECK(*exact.makespan <= simulation.makespan);
        ++compared;
      }
    }
    CHECK(compared > CasesToDraw(30));
  }
}

}  // namespace
}  // namespace contraflow::exact_search_test
