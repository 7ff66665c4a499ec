// Orders for many micro-batches that come of orders for few.

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "schedules/published/placement.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::small_start_test {
namespace {

SearchProblem Bidirectional(int ranks, int microbatches, const CostModel& costs,
                            std::optional<int64_t> limit) {
  return MakeProblem(BidirectionalPlan(MakeSpec("test", ranks, microbatches, costs)), costs, limit);
}

/// Result of policies and local search with a budget of seconds.
SearchResult Start(const SearchProblem& problem, double seconds) {
  SearchOptions options;
  options.budget = static_cast<int64_t>(seconds * 1e9);
  SearchWork work(options);
  std::optional<SearchResult> found = SearchPolicies(problem, 0, &work);
  REQUIRE(found);
  return std::move(*found);
}

TEST_SUITE("unit") {
  TEST_CASE("lists of ranks that wait for each other for ever give nothing") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const SearchProblem problem = MakeProblem(
        SingleRoutePlan(MakeSpec("test", 2, 2, costs), LinearPlacement(2)), costs, std::nullopt);
    const Action f0 = {Op::F, 0}, b0 = {Op::B, 0}, f1 = {Op::F, 1}, b1 = {Op::B, 1};
    ListScheduler scheduler(problem);
    const Rules rules = RulesOf(problem, Policy{});
    const Order good = {{f0, f0, b0, b0}, {f1, f1, b1, b1}};
    const Order bad = {{f0, b0, f0, b0}, {f1, f1, b1, b1}};
    CHECK(scheduler.RunInOrder(good, rules, RankQueue::kNever));
    CHECK(!scheduler.RunInOrder(bad, rules, RankQueue::kNever));
    CHECK(scheduler.RunInOrder(good, rules, RankQueue::kNever));
  }

  TEST_CASE("what is repeated at unit costs is as good for more micro-batches") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const SearchProblem large = Bidirectional(4, 32, costs, std::nullopt);
    const SearchProblem small = WithFewer(large, 4);
    CHECK(small.frame.microbatches == 8);
    const SearchResult few = Start(small, 0.2);
    const Time bound = ProveBound(large.frame, costs, std::nullopt).value;
    ListScheduler scheduler(large);
    bool reached = false;
    for (const Order& guide : Lengthen(small, few.order, large)) {
      const std::optional<Time> makespan =
          scheduler.RunInOrder(guide, RulesOf(large, Policy{}), RankQueue::kNever);
      if (!makespan) continue;
      CHECK(*makespan >= bound);
      reached = reached || *makespan == bound;
    }
    CHECK(reached);
  }
}

TEST_SUITE("property") {
  TEST_CASE("a longer order has every forward and backward of every stage once") {
    std::mt19937_64 random(11);
    int made = 0;
    for (int round = 0; round < CasesToDraw(100); ++round) {
      const int ranks = 2 * (1 + static_cast<int>(random() % 3));
      const int few = 2 + static_cast<int>(random() % 4), more = static_cast<int>(random() % 9);
      const CostModel costs = RandomCosts(&random, ranks, 2 * (few + more));
      const SearchProblem large = Bidirectional(ranks, 2 * (few + more), costs, std::nullopt);
      const SearchProblem small = WithFewer(large, few);
      for (const Order& order : Lengthen(small, Start(small, 0.01).order, large)) {
        ++made;
        for (size_t r = 0; r < order.size(); ++r) {
          for (const int stage : large.stages_of[r]) {
            for (const Op op : {Op::F, Op::B}) {
              CHECK(std::ranges::count_if(order[r], [&](const Action& action) {
                      return action.stage == stage && action.op == op;
                    }) == few + more);
            }
          }
          CHECK(order[r].size() == large.stages_of[r].size() * 2 * static_cast<size_t>(few + more));
        }
      }
    }
    CHECK((kSanitized || made > 20));
  }

  TEST_CASE("a small start gives what runs and fits and is never longer") {
    std::mt19937_64 random(12);
    int shorter = 0;
    for (int round = 0; round < 12; ++round) {
      const int ranks = 2 * (1 + static_cast<int>(random() % 3));
      const int microbatches = 2 * (1 + static_cast<int>(random() % 12));
      CostModel costs = RandomCosts(&random, ranks, microbatches);
      for (StageCost& stage : costs.stages) stage.fb = stage.f + stage.bw;
      std::optional<int64_t> limit;
      if (random() % 2 == 0) {
        // A little more than one micro-batch of each direction takes.
        for (const RouteStage& stage : Bidirectional(ranks, microbatches, costs, limit).stages) {
          limit = std::max(limit.value_or(0), 3 * stage.memory.activation);
        }
      }
      const SearchProblem problem = Bidirectional(ranks, microbatches, costs, limit);
      const Time bound = ProveBound(problem.frame, costs, limit).value;
      const SearchResult before = Start(problem, 0.001);
      SearchOptions options;
      options.budget = 20'000'000;
      SearchResult twice[2] = {before, before};
      for (SearchResult& best : twice) {
        SearchWork work(options);
        StartSmall(problem, bound, options, work.left(), &work, &best);
      }
      CHECK(twice[0].order == twice[1].order);
      const Evaluation evaluation = Evaluate(problem, twice[0].order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(evaluation.makespan == twice[0].makespan);
      CHECK(twice[0].makespan <= before.makespan);
      CHECK(twice[0].makespan >= bound);
      shorter += twice[0].makespan < before.makespan;
      // The result of a hastier search does not replace it.
      SearchResult kept = twice[0];
      options.seed = 5;
      options.budget /= 10;
      SearchWork work(options);
      StartSmall(problem, bound, options, work.left(), &work, &kept);
      CHECK(kept.makespan <= twice[0].makespan);
    }
    CHECK(shorter > 3);
  }
}

}  // namespace
}  // namespace contraflow::small_start_test
