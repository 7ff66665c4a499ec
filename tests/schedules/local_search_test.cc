// Local search: what it keeps up to date is held against an evaluation from nothing, and what it
// finds against what it was given.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/auto/search.h"
#include "schedules/local/order_graph.h"
#include "schedules/registry.h"
#include "schedules/search/search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::local_search_test {
namespace {

/// A random spec whose links are free of queues, so that graphs are exact.
std::vector<Spec> FreeLinks(uint64_t seed, int count, int max_ranks, int max_microbatches) {
  std::mt19937_64 random(seed);
  std::vector<Spec> specs = RandomSpecs(&random, count, max_ranks, max_microbatches);
  for (Spec& spec : specs) {
    spec.costs.comm.latency += spec.costs.comm.occupancy;
    spec.costs.comm.occupancy = spec.costs.comm.bytes = 0;
    spec.costs.comm.bandwidth = 0;
    spec.costs.memory.reset();
  }
  return specs;
}

/// Does what Apply should do: on a copy of the lists.
Order Moved(Order order, const OrderGraph::Move& move) {
  ActionList& list = order[static_cast<size_t>(move.rank)];
  const Action action = list[static_cast<size_t>(move.from)];
  list.erase(list.begin() + move.from);
  list.insert(list.begin() + move.to, action);
  return order;
}

void CheckFigures(const SearchProblem& problem, const OrderGraph& graph, const Order& order) {
  const Evaluation evaluation = Evaluate(problem, order);
  REQUIRE(evaluation.runs);
  CHECK(graph.ToOrder() == order);
  CHECK(graph.makespan() == evaluation.makespan);
  CHECK(Simulate(ToPlan(problem, order), problem.costs).makespan == evaluation.makespan);
  Time ends = 0, longest = 0;
  for (const Time end : evaluation.rank_ends) ends += end;
  CHECK(graph.rank_ends() == ends);
  for (int r = 0; r < graph.ranks(); ++r) {
    for (int i = 0; i < graph.length(r); ++i) longest = std::max(longest, graph.Through(r, i));
  }
  CHECK(longest == evaluation.makespan);
}

SearchOptions Budget(int64_t milliseconds) {
  SearchOptions options;
  options.budget = milliseconds * 1'000'000;
  return options;
}

TEST_SUITE("property") {
  TEST_CASE("moves change what they touch and nothing else") {
    std::mt19937_64 random(5);
    int applied = 0, refused = 0, cyclic = 0, full = 0;
    for (const Spec& spec : FreeLinks(6, 80, 5, 6)) {
      const Plan plan = GeneratePlan(spec);
      const SearchProblem any = MakeProblem(plan, spec.costs, std::nullopt);
      Order order = *ToOrder(any, plan);
      const Evaluation first = Evaluate(any, order);
      const SearchProblem problem =
          MakeProblem(plan, spec.costs, *std::ranges::max_element(first.peak));
      OrderGraph graph(problem, order);
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      for (int i = 0; i < CasesToDraw(60); ++i) {
        const auto below = [&](int n) {
          return static_cast<int>(random() % static_cast<uint64_t>(n));
        };
        OrderGraph::Move move;
        move.rank = below(graph.ranks());
        if (graph.length(move.rank) < 2) continue;
        move.from = below(graph.length(move.rank));
        move.to = below(graph.length(move.rank));
        move = graph.Shorten(move);
        if (move.to == move.from) continue;
        const Order moved = Moved(order, move);
        const Evaluation evaluation = Evaluate(problem, moved);
        if (!graph.Fits(move)) {
          // An action that passes another of the same rank changes the memory there, run or not.
          CHECK_FALSE(evaluation.fits);
          ++full;
          continue;
        }
        if (!graph.Apply(move)) {
          CHECK_FALSE(evaluation.runs);
          ++cyclic;
          CheckFigures(problem, graph, order);
          continue;
        }
        REQUIRE(evaluation.runs);
        CHECK(evaluation.fits);
        if (i % 3 == 0) {
          graph.Rollback();
          ++refused;
        } else {
          graph.Commit();
          ++applied;
          order = moved;
        }
        CheckFigures(problem, graph, order);
      }
    }
    CHECK((kSanitized || applied > 500));
    CHECK((kSanitized || refused > 200));
    CHECK(cyclic > 10);
    CHECK((kSanitized || full > 100));
  }

  TEST_CASE("search is never worse than a seed and its plans are sound") {
    int better = 0, optimal = 0, queues = 0;
    std::mt19937_64 random(7);
    for (const Spec& spec : RandomSpecs(&random, 40, 5, 8)) {
      const Plan plan = GeneratePlan(spec);
      const SearchProblem any = MakeProblem(plan, spec.costs, std::nullopt);
      const std::optional<Order> seed = ToOrder(any, plan);
      if (!seed && spec.schedule == "auto") continue;  // it mixes micro-batches that differ
      REQUIRE(seed);
      const Evaluation first = Evaluate(any, *seed);
      const int64_t limit = *std::ranges::max_element(first.peak);
      const SearchProblem problem = MakeProblem(plan, spec.costs, limit);
      const Time bound = ProveBound(problem.frame, spec.costs, limit).value;
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      const SearchOptions options = Budget(20);
      SearchWork work(options);
      const std::optional<SearchResult> found = Search(problem, {&plan, 1}, bound, options, &work);
      REQUIRE(found);
      const Evaluation evaluation = Evaluate(problem, found->order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(evaluation.makespan == found->makespan);
      CHECK(found->makespan <= first.makespan);
      CHECK(found->makespan >= bound);
      CHECK(FindingsText(ToPlan(problem, found->order)) == "");
      better += found->makespan < first.makespan;
      optimal += found->makespan == bound;
      queues += spec.costs.comm.exclusive() && found->makespan < first.makespan;
    }
    CHECK(better >= 20);
    CHECK(optimal >= 1);
    CHECK(queues >= 5);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("search gives the same order for the same seed and budget") {
    const CostModel costs = UniformCosts(1000, 1400, 600, 50);
    const Spec spec = MakeSpec("zb-v", 4, 8, costs);
    const Plan plan = GeneratePlan(spec);
    const SearchProblem problem = MakeProblem(plan, costs, 8);
    SearchOptions options = Budget(30);
    const auto search = [&] {
      SearchWork work(options);
      return Search(problem, {&plan, 1}, 0, options, &work)->order;
    };
    const Order once = search();
    CHECK(once == search());
    options.seed = 1;
    CHECK_FALSE(once == search());
  }

  TEST_CASE("search ends when it is told to and says how far it is") {
    const CostModel costs = UniformCosts(1000, 1400, 600, 50);
    const Spec spec = MakeSpec("zb-v", 4, 8, costs);
    const Plan plan = GeneratePlan(spec);
    const SearchProblem problem = MakeProblem(plan, costs, 8);
    std::atomic<bool> stop = false;
    std::vector<double> spent;
    const SearchOptions options = Budget(3'600'000);
    SearchControl control = {.stop = &stop};
    control.report = [&](const SearchState& state) {
      spent.push_back(state.spent);
      if (spent.size() == 4) stop = true;
    };
    SearchWork work(options, control);
    const std::optional<SearchResult> found = Search(problem, {&plan, 1}, 0, options, &work);
    REQUIRE(found);
    CHECK(work.spent());
    CHECK(work.left() == 0);
    REQUIRE(spent.size() >= 4);
    CHECK(std::ranges::is_sorted(spent));
  }

  TEST_CASE("with time for many moves the search leaves what cool moves are stuck in") {
    // The shortest there is by a SAT solver, in the memory of v-min.
    Spec spec = MakeSpec("v-min", 4, 8, UniformCosts(500, 700, 300, 50));
    const Plan published = GeneratePlan(spec);
    const SearchProblem problem = MakeProblem(published, spec.costs, 4);
    const SearchOptions options = Budget(1000);
    SearchWork work(options);
    const std::optional<SearchResult> found = Search(problem, {&published, 1}, 0, options, &work);
    REQUIRE(found);
    MESSAGE(found->makespan);
    CHECK(found->makespan == 35'200);
  }
}

}  // namespace
}  // namespace contraflow::local_search_test
