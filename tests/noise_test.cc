// Expected makespans, and orders that are chosen by them.

#include "schedules/noise.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "compiler/bound.h"
#include "schedules/placement.h"
#include "schedules/registry.h"
#include "tests/support.h"

namespace contraflow {
namespace {

/// Linear placement with twice the memory that it takes, so that there is room to choose.
SearchProblem Roomy(const CostModel& costs, int ranks, int microbatches) {
  const Spec spec = MakeSpec("drawn", ranks, microbatches, costs);
  return MakeProblem(SingleRoutePlan(spec, LinearPlacement(ranks)), costs, 2 * ranks);
}

TEST_SUITE("unit") {
  TEST_CASE("drawn durations have the mean and the deviation that were asked for") {
    const SearchProblem problem = Roomy(UniformCosts(1'000'000, 2'000'000, 500'000), 4, 2000);
    const NoiseDraw draw(problem, 0.1, 7);
    const NoiseDraw other(problem, 0.1, 8);
    double sum = 0, squares = 0, together = 0;
    int count = 0;
    for (int32_t line = 0; line < 4; ++line) {
      for (const Op op : {Op::F, Op::B, Op::W}) {
        for (int k = 0; k < 2000; ++k) {
          const auto mean = static_cast<double>(problem.Duration({op, line}, k));
          const double z = static_cast<double>(draw.Duration({op, line}, k)) / mean - 1;
          const double y = static_cast<double>(other.Duration({op, line}, k)) / mean - 1;
          sum += z;
          squares += z * z;
          together += z * y;
          ++count;
        }
      }
    }
    // Three deviations of the estimates: 0.1 / sqrt(24000) and 0.01 * sqrt(2 / 24000).
    CHECK(std::abs(sum / count) < 0.002);
    CHECK(std::abs(squares / count - 0.01) < 0.0003);
    CHECK(std::abs(together / count) < 0.0003);
  }

  TEST_CASE("the mean of one rank is its work and noise makes several ranks wait") {
    const CostModel costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
    for (const int ranks : {1, 4}) {
      const SearchProblem problem = Roomy(costs, ranks, 16);
      Spec spec = MakeSpec("zb-1p", ranks, 16, costs);
      const Order order = *ToOrder(problem, GeneratePlan(spec));
      const Time plain = Evaluate(problem, order).makespan;
      CHECK(ExpectedMakespan(problem, order, 0, 1, 3) == plain);
      const Time noisy = ExpectedMakespan(problem, order, 0.1, 1, 60);
      CAPTURE(noisy);
      if (ranks == 1) CHECK(std::abs(noisy - plain) < plain / 200);
      if (ranks == 4) CHECK(noisy > plain + plain / 100);
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("a search that expects noise is as short without and shorter with it") {
    double before = 0, after = 0;
    for (const auto& [f, b, w, hop] :
         std::vector<std::array<Time, 4>>{{1'000'000, 1'000'000, 1'000'000, 100'000},
                                          {1'000'000, 1'400'000, 600'000, 50'000},
                                          {1'000'000, 2'000'000, 1'000'000, 50'000}}) {
      const CostModel costs = UniformCosts(f, b, w, hop);
      const SearchProblem problem = Roomy(costs, 4, 8);
      const std::vector<Plan> seeds = {GeneratePlan(MakeSpec("zb-2p", 4, 8, costs))};
      const Time bound = ProveBound(problem.frame, costs, problem.limit).value;
      SearchOptions options;
      options.budget = 100'000'000;
      SearchWork work(options);
      const std::optional<Found> plain = Search(problem, seeds, bound, options, &work);
      options.noise = 0.1;
      SearchWork more(options);
      const std::optional<Found> steady = Search(problem, seeds, bound, options, &more);
      REQUIRE(plain);
      REQUIRE(steady);
      const Evaluation evaluation = Evaluate(problem, steady->order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(steady->makespan == evaluation.makespan);
      CHECK(steady->makespan <= plain->makespan);
      // Draws that neither has seen.
      const Time of_plain = ExpectedMakespan(problem, plain->order, 0.1, 77, 100);
      const Time of_steady = ExpectedMakespan(problem, steady->order, 0.1, 77, 100);
      before += static_cast<double>(of_plain) / static_cast<double>(plain->makespan);
      after += static_cast<double>(of_steady) / static_cast<double>(plain->makespan);
    }
    CAPTURE(before / 3);
    CAPTURE(after / 3);
    // What noise adds to the three steps, of which each is 1 without.
    CHECK(after - 3 < 0.85 * (before - 3));
  }
}

}  // namespace
}  // namespace contraflow
