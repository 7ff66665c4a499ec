// The search of all orders, and `auto` held against an exact search of its own. More instances, and
// others: CONTRAFLOW_EXACT=2000 CONTRAFLOW_SEED=2 contraflow_schedules_test -tc="auto is optimal*".

#include "schedules/search/exact_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tests/support/exact_instance.h"
#include "tests/support/exact_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::small_search_test {
namespace {

constexpr Time kAny = std::numeric_limits<Time>::max() / 4;

/// A second of work.
ExactSearch SearchFor(const ExactInstance& instance, const std::vector<int>& recomputed,
                      Time below) {
  SearchWork work{SearchOptions()};
  std::vector<int64_t> rooms;
  if (instance.limit) rooms.assign(static_cast<size_t>(instance.plan.ranks), *instance.limit);
  return SearchExactly(FrameOf(instance.plan), instance.costs, rooms, recomputed, below, 0,
                       work.left(), &work);
}

/// Like ExactMakespan, of the best way to share unlike micro-batches out between two routes.
ExactResult Optimum(const ExactInstance& instance) {
  Plan plan = instance.plan;
  ExactResult best = ExactMakespan(plan, instance.costs, instance.limit, 5'000);
  if (plan.routes.size() < 2 || instance.costs.microbatch_scale.empty()) return best;
  const unsigned all = 1u << static_cast<unsigned>(plan.microbatches);
  const auto first = static_cast<int>(plan.routes[0].microbatches.size());
  for (unsigned chosen = 0; chosen < all && best.finished; ++chosen) {
    if (std::popcount(chosen) != first) continue;
    for (Route& route : plan.routes) route.microbatches.clear();
    for (int m = 0; m < plan.microbatches; ++m) {
      plan.routes[(chosen >> m & 1u) == 1 ? 0 : 1].microbatches.push_back(m);
    }
    const ExactResult other = ExactMakespan(plan, instance.costs, instance.limit, 5'000);
    best.finished = other.finished;
    if (!other.makespan) continue;
    best.makespan = best.makespan ? std::min(*best.makespan, *other.makespan) : *other.makespan;
  }
  return best;
}

/// Makes a third of the instances recompute stages; which.
std::vector<int> Recompute(ExactInstance* instance, std::mt19937_64* random) {
  std::vector<int> stages;
  if ((*random)() % 3 > 0) return stages;
  Plan& plan = instance->plan;
  plan.programs.assign(static_cast<size_t>(plan.ranks), {});
  for (int s = 0; s < plan.stages; ++s) {
    if ((*random)() % 2 == 0) continue;
    stages.push_back(s);
    for (int m = 0; m < plan.microbatches; ++m) plan.programs[0].push_back(CellOp(Op::R, s, m));
  }
  if (instance->costs.memory) {
    const auto activation = static_cast<uint64_t>(instance->costs.memory->activation_bytes);
    instance->costs.memory->input_bytes = static_cast<int64_t>((*random)() % (activation + 1));
  }
  return stages;
}

Plan LinearFrame(int ranks, int microbatches) {
  return SingleRoutePlan(MakeSpec("linear", ranks, microbatches, {}), LinearPlacement(ranks));
}

/// Plan that `auto` makes of an instance.
Plan Searched(const ExactInstance& instance) {
  Spec spec = MakeSpec("auto", instance.plan.ranks, instance.plan.microbatches, instance.costs);
  spec.memory_limit = instance.limit;
  spec.search.budget = 1'000'000'000;
  spec.search.placement = ParsePlacement(instance.placement == "V" ? "v" : instance.placement);
  if (instance.placement == "interleaved") spec.chunks = 2;
  // One entry is for every stage of the instance.
  spec.costs.stages.resize(static_cast<size_t>(instance.plan.stages), spec.costs.stages[0]);
  return GeneratePlan(spec);
}

TEST_SUITE("property") {
  TEST_CASE("the exact search finds the optimum of a tiny instance and proves it") {
    ExactInstances instances(21);
    std::mt19937_64 random(21);
    int compared = 0, incomplete = 0;
    while (compared < CasesToDraw(150)) {
      ExactInstance instance = instances.Next();
      const std::vector<int> recomputed = Recompute(&instance, &random);
      const ExactResult exact = ExactMakespan(instance.plan, instance.costs, instance.limit, 5'000);
      if (!exact.finished) continue;
      CAPTURES(instance.Describe(), compared);
      const ExactSearch found = SearchFor(instance, recomputed, kAny);
      ++compared;
      // Without anything to be shorter than, a few take longer.
      incomplete += !found.complete;
      if (!found.complete) continue;
      CHECK(found.programs.empty() == !exact.makespan);
      if (!exact.makespan) continue;
      CHECK(found.makespan == *exact.makespan);
      Plan plan = instance.plan;
      plan.programs = found.programs;
      CHECK(FindingsText(plan) == "");
      const Simulation simulation = Simulate(plan, instance.costs);
      CHECK(simulation.makespan == found.makespan);
      CHECK((!instance.limit || MemoryLimit(instance.costs, instance.limit).Fits(simulation)));
      // No schedule is shorter, and that is proven as well.
      const ExactSearch shorter = SearchFor(instance, recomputed, found.makespan);
      CHECK(shorter.complete);
      CHECK(shorter.programs.empty());
    }
    CHECK(30 * incomplete < compared);
  }

  TEST_CASE("auto is optimal on tiny instances, and says so where all was looked at") {
    ExactInstances instances(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 22)));
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(120));
    int compared = 0, optimal = 0, proven = 0, mixed = 0;
    double above = 0;  // the optimum, in percent
    while (compared < wanted) {
      const ExactInstance instance = instances.Next();
      const bool odd = instance.plan.routes.size() > 1 && instance.plan.ranks % 2 == 1;
      if (odd && !instance.costs.microbatch_scale.empty()) continue;  // auto says why not
      const ExactResult exact = Optimum(instance);
      if (!exact.finished || !exact.makespan) continue;
      CAPTURE(instance.Describe());
      const Plan plan = Searched(instance);
      const Time makespan = Simulate(plan, instance.costs).makespan;
      CHECK(makespan >= *exact.makespan);
      CHECK(FindingsText(plan) == "");
      CHECK(plan.provenance->makespan == makespan);
      // A bound holds for the way in which micro-batches are shared out.
      const ExactResult own = ExactMakespan(plan, instance.costs, instance.limit, 5'000);
      CHECK((!own.finished || plan.provenance->bound <= *own.makespan));
      CHECK(plan.provenance->bound >= ProveBound(plan, *plan.costs, instance.limit).value);
      ++compared;
      optimal += makespan == *exact.makespan;
      const auto optimum = static_cast<double>(*exact.makespan);
      above += 100 * (static_cast<double>(makespan) / optimum - 1);
      proven += makespan == plan.provenance->bound;
      mixed += !ToOrder(MakeProblem(plan, instance.costs, instance.limit), plan);
    }
    MESSAGE(optimal << " of " << compared << " optimal, " << proven << " proven, mean "
                    << above / compared << " % above");
    CHECK(100 * optimal >= 97 * compared);
    CHECK(above <= 0.05 * compared);
    CHECK(100 * proven >= 97 * compared);
    // Some need their micro-batches in another order.
    CHECK((kSanitized || mixed > 0));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("what moves of single actions do not find") {
    Spec spec = MakeSpec("auto", 3, 4, UniformCosts(10, 10, 10));
    spec.search.placement = Placement::kV;
    spec.costs.stages.resize(6, spec.costs.stages[0]);
    spec.memory_limit = 3;
    CHECK(GeneratePlan(spec).provenance->makespan == 360);
    spec = MakeSpec("auto", 2, 3, UniformCosts(7, 9, 2));
    spec.search.placement = Placement::kBidirectional;
    spec.memory_limit = 1;
    CHECK(GeneratePlan(spec).provenance->makespan == 88);
  }

  TEST_CASE("micro-batches that differ run in the order that is shortest") {
    // A short one first, so that the other rank has work soon.
    CostModel costs = UniformCosts(10, 10, 0);
    costs.microbatch_scale = {2, 1, 1, 1};
    Spec spec = MakeSpec("auto", 2, 4, costs);
    spec.search.placement = Placement::kLinear;
    const Plan plan = GeneratePlan(spec);
    CHECK(plan.programs[0][0] == CellOp(Op::F, 0, 1));
    CHECK(plan.provenance->makespan == 120);
    CHECK(plan.provenance->bound == plan.provenance->makespan);
    CHECK(FindingsText(plan) == "");
  }

  TEST_CASE("the exact search ends with its budget and takes no large frames") {
    const CostModel costs = UniformCosts(10, 13, 4, 3);
    const Plan frame = LinearFrame(4, 8);
    const std::vector<int64_t> rooms(4, 3);
    SearchWork work{SearchOptions()};
    const ExactSearch found = SearchExactly(frame, costs, rooms, {}, kAny, 0, 20'000, &work);
    CHECK_FALSE(found.complete);
    CHECK(work.left() >= SearchWork::kPerSecond - 21'000);
    const ExactSearch again = SearchExactly(frame, costs, rooms, {}, kAny, 0, 20'000, &work);
    CHECK(again.programs == found.programs);
    CHECK(TakesExactly(frame));
    CHECK_FALSE(TakesExactly(LinearFrame(4, 11)));
    CHECK_FALSE(
        SearchExactly(LinearFrame(4, 11), costs, rooms, {}, kAny, 0, 20'000, &work).complete);
  }
}

}  // namespace
}  // namespace contraflow::small_search_test
