#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/bound/work.h"
#include "schedules/auto/search.h"
#include "schedules/published/placement.h"
#include "schedules/search/search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::bound_opening_test {
namespace {

/// The formula for every number of forwards before the first that comes back.
Time EveryPlace(const std::vector<FirstBackwardIdle>& openings, int64_t forwards, Time longest) {
  Time least = std::numeric_limits<Time>::max();
  for (const FirstBackwardIdle& opening : openings) {
    for (int64_t j = 0; j < forwards; ++j) {
      const Time before = std::max<Time>(0, opening.wait - j * longest);
      const Time after = std::max<Time>(0, opening.lag - (forwards - 1 - j) * longest);
      least = std::min(least, before + after);
    }
  }
  return least;
}

/// Four ranks, lines in both directions, 10 ticks for each of F, B and W, and hops of one.
Time BoundOfFour(int microbatches, int64_t limit) {
  CostModel costs = UniformCosts(10, 10, 10, 1);
  costs.memory = MemoryCost{.activation_bytes = 1, .w_stash_bytes = 1};
  const Plan frame = BidirectionalPlan(MakeSpec("", 4, microbatches, costs));
  return ProveBound(frame, costs, limit).value;
}

TEST_SUITE("property") {
  TEST_CASE("the idle time of an opening is the least over all places of its first chunk") {
    std::mt19937_64 random(11);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    int idle = 0;
    for (int round = 0; round < CasesToDraw(20'000); ++round) {
      std::vector<FirstBackwardIdle> openings;
      const Time longest = draw(0, 6);
      for (int64_t i = draw(1, 3); i > 0; --i) openings.push_back({draw(-5, 40), draw(0, 40)});
      const int64_t forwards = draw(1, 12);
      const Time expected = EveryPlace(openings, forwards, longest);
      CAPTURE(round);
      CHECK(IdleBeforeFirstBackward(openings, forwards, longest) == expected);
      idle += expected > 0;
    }
    CHECK(idle > 1000);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a middle rank with P + 1 activations loses a hop before its first backward") {
    for (const int microbatches : {8, 16}) {
      const Time head = 11, work = microbatches * 30;
      CHECK(BoundOfFour(microbatches, 5) == head + work + 1);
      CHECK(BoundOfFour(microbatches, 7) == head + work);
    }
  }

  TEST_CASE("an order that loses no more than that hop is proven optimal") {
    CostModel costs = UniformCosts(10, 10, 10, 1);
    costs.memory = MemoryCost{.activation_bytes = 1, .w_stash_bytes = 1};
    const Plan frame = BidirectionalPlan(MakeSpec("", 4, 8, costs));
    const Time bound = ProveBound(frame, costs, 5).value;
    const SearchProblem problem = MakeProblem(frame, costs, 5);
    SearchOptions options;
    SearchWork work(options);
    const std::optional<SearchResult> found = Search(problem, {}, bound, options, &work);
    REQUIRE(found.has_value());
    CHECK(found->makespan == bound);
  }
}

}  // namespace
}  // namespace contraflow::bound_opening_test
