#include <doctest/doctest.h>

#include <random>

#include "compiler/bound/bound.h"
#include "compiler/verify/verify.h"
#include "schedules/auto/search.h"
#include "schedules/published/placement.h"
#include "schedules/search/search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::join_backwards_test {
namespace {

CostModel Costs(Time f, Time b, Time w, Time bw) {
  CostModel costs = UniformCosts(f, b, w);
  costs.stages[0].bw = bw;
  costs.stages[0].fb = f + bw;
  return costs;
}

/// Result of a short search for a placement.
SearchResult SearchIt(const SearchProblem& problem, Time bound) {
  SearchOptions options;
  options.budget = 20'000'000;
  SearchWork work(options);
  std::optional<SearchResult> found = Search(problem, {}, bound, options, &work);
  REQUIRE(found);
  const Evaluation evaluation = Evaluate(problem, found->order);
  CHECK(evaluation.runs);
  CHECK(evaluation.fits);
  CHECK(evaluation.makespan == found->makespan);
  return *found;
}

TEST_SUITE("unit") {
  TEST_CASE("a full backward where nobody waits for it and its parts where somebody does") {
    // The last of two ranks gives its gradient after 5 and not after 7; the first then takes 7.
    const Plan frame = SingleRoutePlan(MakeSpec("", 2, 1, {}), LinearPlacement(2));
    const CostModel costs = Costs(4, 5, 5, 7);
    const Time bound = ProveBound(frame, costs, std::nullopt).value;
    CHECK(bound == 4 + 4 + 5 + 7);
    const SearchResult found = SearchIt(MakeProblem(frame, costs, std::nullopt), bound);
    CHECK(found.makespan == bound);
    CHECK(found.order[0] == ActionList{{Op::F, 0}, {Op::BW, 0}});
    CHECK(found.order[1] == ActionList{{Op::F, 1}, {Op::B, 1}, {Op::W, 1}});
  }

  TEST_CASE("weight gradients stay in order when backwards are joined") {
    // W of the first chunk comes after B of the second, which can take its W along only when the
    // first has done so.
    const Plan frame = SingleRoutePlan(MakeSpec("", 1, 2, {}), LinearPlacement(1));
    const SearchProblem problem = MakeProblem(frame, Costs(4, 5, 5, 7), std::nullopt);
    SearchOptions options;
    options.budget = 1'000'000'000;
    SearchWork work(options);
    SearchResult found = {
        {{{Op::F, 0}, {Op::F, 0}, {Op::B, 0}, {Op::B, 0}, {Op::W, 0}, {Op::W, 0}}}, 28, "by hand"};
    JoinBackwards(problem, 0, 1'000'000, &work, &found);
    CHECK(found.makespan == 4 + 4 + 7 + 7);
    CHECK(found.order[0] == ActionList{{Op::F, 0}, {Op::F, 0}, {Op::BW, 0}, {Op::BW, 0}});
    CHECK(found.from == "full backwards in by hand");
    // There is no pair to join where the parts take no longer.
    const SearchProblem alike = MakeProblem(frame, Costs(4, 5, 5, 10), std::nullopt);
    CHECK(!JoiningPays(alike));
    const SearchResult before = found;
    JoinBackwards(alike, 0, 1'000'000, &work, &found);
    CHECK(found.order == before.order);
  }
}

TEST_SUITE("property") {
  TEST_CASE("joined backwards run within the limit and are never longer") {
    std::mt19937_64 random(31);
    int optimal = 0, both = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const auto draw = [&random](Time low, Time high) {
        return low + static_cast<Time>(random() % static_cast<uint64_t>(high - low + 1));
      };
      const int ranks = static_cast<int>(draw(1, 4)), microbatches = static_cast<int>(draw(1, 6));
      const Time b = draw(2, 9), w = draw(2, 9);
      const CostModel costs = Costs(draw(1, 9), b, w, draw(std::max(b, w), b + w - 1));
      const bool v = draw(0, 1) == 0;
      const Spec spec = MakeSpec("", ranks, microbatches, {});
      const Plan frame = SingleRoutePlan(spec, v ? VPlacement(ranks) : LinearPlacement(ranks));
      const int64_t limit = draw(2, 2 * ranks);
      const SearchProblem problem = MakeProblem(frame, costs, limit);
      const Time bound = ProveBound(frame, costs, limit).value;
      const SearchResult found = SearchIt(problem, bound);
      CHECK(found.makespan >= bound);
      CHECK(FindingsText(ToPlan(problem, found.order)) == "");
      optimal += found.makespan == bound;
      bool joined = false, apart = false;
      for (const ActionList& list : found.order) {
        for (const Action& action : list) {
          joined = joined || action.op == Op::BW;
          apart = apart || action.op == Op::B;
        }
      }
      both += joined && apart;
    }
    CHECK((kSanitized || optimal >= 20));
    CHECK((kSanitized || both >= 10));
  }
}

}  // namespace
}  // namespace contraflow::join_backwards_test
