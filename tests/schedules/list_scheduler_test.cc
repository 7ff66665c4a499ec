// List scheduling by policies: what it finds runs, fits and is never shorter than what is proven,
// on random problems of all placements and memory limits, and often the best there is.

#include "schedules/search/list_scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/search.h"
#include "schedules/search/search_problem.h"
#include "tests/support/exact_instance.h"
#include "tests/support/exact_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::list_scheduler_test {
namespace {

bool Full() {
  const char* suite = std::getenv("CONTRAFLOW_SUITE");
  return suite != nullptr && std::string(suite) == "full";
}

/// Need of one micro-batch on the rank that it takes most on.
int64_t LeastLimit(const SearchProblem& problem) {
  int64_t least = 0;
  for (const std::vector<int>& here : problem.stages_of) {
    std::vector<int64_t> of_route(problem.frame.routes.size(), 0);
    for (const int stage : here) {
      const RouteStage& l = problem.stage(stage);
      if (l.count > 0) of_route[static_cast<size_t>(l.route)] += l.memory.activation;
    }
    least = std::max(least, *std::ranges::max_element(of_route));
  }
  return least;
}

/// Any P and M, any of the placements, any costs, any limit that one micro-batch fits in.
SearchProblem RandomProblem(std::mt19937_64* random) {
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>((*random)() % static_cast<uint64_t>(high - low + 1));
  };
  const int ranks = draw(1, 7), microbatches = draw(1, 12), kind = draw(0, 3);
  Spec spec = MakeSpec("random", ranks, microbatches, UniformCosts(1, 1, 1));
  std::vector<int> placement = LinearPlacement(ranks);
  if (kind == 1) placement = VPlacement(ranks);
  if (kind == 2) {
    const int chunks = draw(2, 3);
    for (int c = 1; c < chunks; ++c) {
      for (int r = 0; r < ranks; ++r) placement.push_back(r);
    }
  }
  const Plan frame = kind == 3 ? BidirectionalPlan(spec) : SingleRoutePlan(spec, placement);
  CostModel costs = RandomCosts(random, frame.stages, microbatches);
  costs.memory.reset();
  if (draw(0, 1) == 0) {
    const int64_t bytes = draw(1, 100);
    costs.memory =
        MemoryCost{.activation_bytes = bytes, .w_stash_bytes = draw(0, static_cast<int>(bytes))};
  }
  std::optional<int64_t> limit;
  const int64_t least = LeastLimit(MakeProblem(frame, costs, std::nullopt));
  if (draw(0, 3) > 0) limit = least + least * draw(0, 2 * ranks) / 2;
  return MakeProblem(frame, costs, limit);
}

SearchWork WorkOf(double seconds) {
  static SearchOptions options;
  options.budget = static_cast<int64_t>(seconds * 1e9);
  return SearchWork(options);
}

/// Checks it and gives its makespan.
Time MakespanOf(const SearchProblem& problem, const SearchResult& found) {
  const Evaluation evaluation = Evaluate(problem, found.order);
  CHECK(evaluation.runs);
  CHECK(evaluation.fits);
  CHECK(evaluation.makespan == found.makespan);
  const Plan plan = ToPlan(problem, found.order);
  CHECK(Simulate(plan, problem.costs).makespan == found.makespan);
  size_t actions = 0;
  for (const ActionList& list : found.order) actions += list.size();
  CHECK(actions <= static_cast<size_t>(3 * problem.chunks()));
  CHECK(actions >= static_cast<size_t>(2 * problem.chunks()));
  return evaluation.makespan;
}

TEST_SUITE("unit") {
  TEST_CASE("the queue of ranks gives the earliest and of equals the lowest") {
    std::mt19937_64 random(1);
    for (const size_t ranks : {size_t{1}, size_t{2}, size_t{5}, size_t{13}}) {
      RankQueue queue;
      queue.Reset(ranks);
      std::vector<Time> times(ranks, 0);
      for (int round = 0; round < CasesToDraw(300); ++round) {
        const auto first = std::ranges::min_element(times);
        CHECK(queue.first() == first - times.begin());
        CHECK(queue.first_time() == *first);
        const size_t rank = random() % ranks;
        times[rank] = random() % 4 == 0 ? RankQueue::kNever : static_cast<Time>(random() % 20);
        queue.Set(static_cast<int>(rank), times[rank]);
      }
    }
  }

  TEST_CASE("the policy of ZB-1P reaches the bound where that order is optimal") {
    const Spec spec = MakeSpec("linear", 8, 32, UniformCosts(100, 100, 70, 3));
    const Plan frame = SingleRoutePlan(spec, LinearPlacement(8));
    const SearchProblem problem = MakeProblem(frame, spec.costs, 8);
    Policy policy;
    policy.ahead = 100;
    policy.fill = 100;
    ListScheduler scheduler(problem);
    const std::optional<Time> makespan = scheduler.Run(RulesOf(problem, policy), RankQueue::kNever);
    REQUIRE(makespan);
    CHECK(*makespan == ProveBound(frame, spec.costs, 8).value);
    // Nor is anything below it, and so it gives up.
    CHECK(!scheduler.Run(RulesOf(problem, policy), *makespan));
  }

  TEST_CASE("policies find a good order of a large problem with little memory") {
    Spec spec = MakeSpec("", 64, 512, UniformCosts(1'000, 1'000, 1'000, 50));
    spec.costs.stages.assign(64, spec.costs.stage(0));
    for (size_t s = 0; s < 64; ++s) {
      StageCost& stage = spec.costs.stages[s];
      stage.f += static_cast<Time>(s * 37 % 401) - 200;
      stage.b += static_cast<Time>(s * 53 % 401) - 200;
      stage.w += static_cast<Time>(s * 71 % 401) - 200;
      stage.bw = stage.b + stage.w;
      stage.fb = stage.f + stage.bw;
    }
    const Plan frame = SingleRoutePlan(spec, LinearPlacement(64));
    SearchOptions options;
    options.budget = 500'000'000;
    SearchWork work(options);
    const std::optional<SearchResult> found =
        SearchPolicies(MakeProblem(frame, spec.costs, 32), 0, &work);
    REQUIRE(found);
    CHECK(found->makespan * 100 < ProveBound(frame, spec.costs, 32).value * 115);
  }
}

TEST_SUITE("property") {
  TEST_CASE("every policy ends within every limit that one micro-batch fits in") {
    std::mt19937_64 random(7);
    for (int round = 0; round < (Full() ? 400 : 60); ++round) {
      const SearchProblem problem = RandomProblem(&random);
      CAPTURE(round);
      ListScheduler scheduler(problem);
      const std::vector<Policy> grid = PolicyGrid(problem);
      for (size_t i = random() % 40; i < grid.size(); i += 40) {
        CAPTURE(ToString(grid[i]));
        const std::optional<Time> makespan =
            scheduler.Run(RulesOf(problem, grid[i]), RankQueue::kNever);
        REQUIRE(makespan);
        const Evaluation evaluation = Evaluate(problem, scheduler.TakeOrder());
        CHECK(evaluation.runs);
        CHECK(evaluation.fits);
        CHECK(evaluation.makespan <= *makespan);
      }
    }
  }

  TEST_CASE("policies find what runs and fits and is no shorter than the bound") {
    std::mt19937_64 random(11);
    int optimal = 0;
    const int rounds = Full() ? 400 : 40;
    for (int round = 0; round < rounds; ++round) {
      const SearchProblem problem = RandomProblem(&random);
      CAPTURE(round);
      const Time bound = ProveBound(problem.frame, problem.costs, problem.limit).value;
      SearchWork work = WorkOf(0.02), again = WorkOf(0.02);
      const std::optional<SearchResult> found = SearchPolicies(problem, bound, &work);
      REQUIRE(found);
      const Time makespan = MakespanOf(problem, *found);
      CHECK(makespan >= bound);
      optimal += makespan == bound;
      const std::optional<SearchResult> twin = SearchPolicies(problem, bound, &again);
      REQUIRE(twin);
      CHECK(twin->order == found->order);
      CHECK(twin->from == found->from);
    }
    CHECK(optimal > 0);
    MESSAGE("policies reach the bound of " << optimal << " of " << rounds);
  }

  TEST_CASE("policies often find the best schedule of all and never a shorter one") {
    ExactInstances instances(17);
    int compared = 0, reached = 0;
    const int enough = Full() ? 300 : 40;
    while (compared < enough) {
      const ExactInstance instance = instances.Next();
      if (instance.kind == "pairs") continue;
      const ExactResult exact =
          ExactMakespan(instance.plan, instance.costs, instance.limit, 20'000);
      if (!exact.finished || !exact.makespan) continue;
      CAPTURE(instance.Describe());
      const SearchProblem problem = MakeProblem(instance.plan, instance.costs, instance.limit);
      SearchWork work = WorkOf(0.05);
      const std::optional<SearchResult> found = SearchPolicies(problem, *exact.makespan, &work);
      REQUIRE(found);
      const Time makespan = MakespanOf(problem, *found);
      CHECK(makespan >= *exact.makespan);
      ++compared;
      reached += makespan == *exact.makespan;
    }
    CHECK(reached * 3 > compared * 2);
    MESSAGE("policies reach the optimum of " << reached << " of " << compared);
  }
}

}  // namespace
}  // namespace contraflow::list_scheduler_test
