// The problem that a search works on, held against the plans and the simulator that it stands for.

#include "schedules/search/search_problem.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "schedules/search/evaluator.h"
#include "tests/support/support.h"

namespace contraflow::search_problem_test {
namespace {

/// Costs as RandomCosts draws them, now and then with overlapped pairs and memory.
CostModel Costs(std::mt19937_64* random, const Schedule& schedule, const Spec& spec) {
  CostModel costs = RandomCosts(random, schedule.stages(spec), spec.microbatches);
  if ((*random)() % 2 == 0) {
    for (StageCost& stage : costs.stages) {
      const Time longest = std::max({stage.f, stage.b, stage.w});
      stage.fb = longest + (stage.f + stage.bw - longest) / 2;
    }
  }
  if (costs.comm.exclusive() && (*random)() % 2 == 0) {
    SetSizes(random, schedule.stages(spec), &costs.comm);
  }
  costs.memory.reset();
  if ((*random)() % 2 == 0) {
    const auto bytes = static_cast<int64_t>(1 + (*random)() % 100);
    costs.memory = MemoryCost{.activation_bytes = bytes,
                              .w_stash_bytes = static_cast<int64_t>((*random)()) % (bytes + 1)};
    costs.memory->w_stash_bytes = std::abs(costs.memory->w_stash_bytes);
    // Stages that hold more than the least.
    for (int s = 0; (*random)() % 2 == 0 && s < schedule.stages(spec); ++s) {
      const auto more = static_cast<int64_t>((*random)() % 50);
      costs.memory->activation_of.resize(static_cast<size_t>(schedule.stages(spec)), bytes);
      costs.memory->stash_of.resize(costs.memory->activation_of.size(),
                                    costs.memory->w_stash_bytes);
      costs.memory->activation_of[static_cast<size_t>(s)] += more;
      costs.memory->stash_of[static_cast<size_t>(s)] += more / 2;
    }
  }
  return costs;
}

/// The same plan with the micro-batches of each route listed as its first stage runs them: `auto`
/// changes the order of those that differ.
Plan ListedAsRun(Plan plan) {
  for (Route& route : plan.routes) {
    std::vector<int> run;
    for (const Instruction& i : plan.programs[static_cast<size_t>(route.ranks[0])]) {
      const bool own = HasForward(i.op) && i.stage == 0;
      if (own && std::ranges::count(route.microbatches, i.microbatch) > 0) {
        run.push_back(i.microbatch);
      }
    }
    route.microbatches = std::move(run);
  }
  return plan;
}

TEST_SUITE("property") {
  TEST_CASE("an order runs as the simulator says of its plan") {
    std::mt19937_64 random(20261121);
    int pairs = 0, exclusive = 0, bytes = 0, scaled = 0;
    for (Spec& spec : RandomSpecs(&random, 400, 6, 9)) {
      const Schedule& schedule = FindSchedule(spec.schedule);
      spec.costs = Costs(&random, schedule, spec);
      const Plan plan = ListedAsRun(GeneratePlan(spec));
      const Simulation simulation = Simulate(plan, spec.costs);
      std::vector<int64_t> peaks;
      for (const RankFigures& rank : simulation.ranks) {
        peaks.push_back(spec.costs.memory ? rank.peak_bytes : int64_t{rank.peak_activations});
      }
      const int64_t most = *std::ranges::max_element(peaks);
      for (const int64_t limit : {most, most - 1}) {
        CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
        const SearchProblem problem = MakeProblem(plan, spec.costs, limit);
        const std::optional<Order> order = ToOrder(problem, plan);
        // The exact search alone runs chunks in any order.
        if (!order && plan.provenance && plan.provenance->from == "exact search") continue;
        REQUIRE(order);
        Evaluator evaluator(problem);
        evaluator.Run(*order);  // A run leaves no trace in the next.
        const Evaluation evaluation = evaluator.Run(*order);
        CHECK(evaluation.runs);
        CHECK(evaluation.fits == (limit == most));
        SearchProblem roomy = problem;
        roomy.rooms = peaks;
        CHECK(Evaluate(roomy, *order).fits);
        --roomy.rooms[random() % peaks.size()];
        CHECK_FALSE(Evaluate(roomy, *order).fits);
        CHECK(evaluation.makespan == simulation.makespan);
        CHECK(evaluation.span == simulation.span);
        CHECK(evaluation.peak == peaks);
        for (size_t r = 0; r < peaks.size(); ++r) {
          CHECK(evaluation.rank_ends[r] == simulation.ranks[r].last_end);
        }
        CHECK(ToPlan(problem, *order).programs == plan.programs);
        pairs += problem.pairs;
        scaled += !problem.alike();
      }
      exclusive += spec.costs.comm.exclusive();
      bytes += spec.costs.memory.has_value();
    }
    CHECK(pairs > 50);
    CHECK(scaled > 50);
    CHECK(exclusive > 50);
    CHECK(bytes > 50);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("orders that wait for ever do not run") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const Spec spec = MakeSpec("drawn", 2, 1, costs);
    const SearchProblem line = MakeProblem(SingleRoutePlan(spec, {0, 1}), costs, std::nullopt);
    const Order good = {{{Op::F, 0}, {Op::B, 0}, {Op::W, 0}}, {{Op::F, 1}, {Op::BW, 1}}};
    CHECK(Evaluate(line, good).runs);
    CHECK(Evaluate(line, good).makespan == 6);
    Order order = good;
    std::swap(order[0][0], order[0][1]);  // B before F
    CHECK_FALSE(Evaluate(line, order).runs);
    order = good;
    std::swap(order[0][1], order[0][2]);  // W before B
    CHECK_FALSE(Evaluate(line, order).runs);
    order = good;
    order[1].push_back({Op::F, 1});  // more than there are
    CHECK_FALSE(Evaluate(line, order).runs);
    // Two routes of one micro-batch each in opposite directions: each rank waits for the other.
    Spec both = MakeSpec("drawn", 2, 2, costs);
    const SearchProblem cross = MakeProblem(BidirectionalPlan(both), costs, std::nullopt);
    const auto all = [](int32_t stage_of) {
      return ActionList{{Op::F, stage_of}, {Op::BW, stage_of}};
    };
    const auto after = [](ActionList first, const ActionList& second) {
      first.insert(first.end(), second.begin(), second.end());
      return first;
    };
    // Lines 0 and 1 are the first route's, 2 and 3 the second's, whose stage 0 is on rank 1.
    CHECK(Evaluate(cross, {after(all(0), all(3)), after(all(1), all(2))}).runs);
    CHECK_FALSE(Evaluate(cross, {after(all(3), all(0)), after(all(1), all(2))}).runs);
  }

  TEST_CASE("a plan whose micro-batches are out of order is no order") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const Spec spec = MakeSpec("gpipe", 1, 2, costs);
    Plan plan = GeneratePlan(spec);
    const SearchProblem problem = MakeProblem(plan, costs, std::nullopt);
    CHECK(ToOrder(problem, plan));
    std::swap(plan.programs[0][0], plan.programs[0][1]);
    CHECK_FALSE(ToOrder(problem, plan));
  }
}

}  // namespace
}  // namespace contraflow::search_problem_test
