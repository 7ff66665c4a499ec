// Expected makespans, and orders that are chosen by them.

#include "schedules/local/noise.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "schedules/auto/search.h"
#include "schedules/local/sampled_times.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::noise_test {
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
    for (int32_t stage = 0; stage < 4; ++stage) {
      for (const Op op : {Op::F, Op::B, Op::W}) {
        for (int k = 0; k < CasesToDraw(2000); ++k) {
          const auto mean = static_cast<double>(problem.Duration({op, stage}, k));
          const double z = static_cast<double>(draw.Duration({op, stage}, k)) / mean - 1;
          const double y = static_cast<double>(other.Duration({op, stage}, k)) / mean - 1;
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
  TEST_CASE("times in many draws after moves are those of the order made anew") {
    const CostModel costs = UniformCosts(1'000'003, 1'400'000, 600'000, 50'000);
    const SearchProblem problem = Roomy(costs, 4, 8);
    OrderGraph graph(problem, *ToOrder(problem, GeneratePlan(MakeSpec("zb-2p", 4, 8, costs))));
    SampledTimes times(problem, graph, 0.1, 5, 20);
    REQUIRE(times.draws() == 32);
    std::mt19937_64 random(3);
    int kept = 0, refused = 0;
    for (int i = 0; i < CasesToDraw(2000); ++i) {
      const int rank = static_cast<int>(random() % 4);
      const auto place = [&] {
        return static_cast<int>(random() % static_cast<uint64_t>(graph.length(rank)));
      };
      const OrderGraph::Move move = graph.Shorten({rank, place(), place()});
      if (move.from == move.to || !graph.Fits(move)) continue;
      const int64_t before = times.sum(), worse = times.Worse(move);
      CHECK(worse >= 0);
      if (!graph.Apply(move)) continue;
      times.Apply(move);
      if (random() % 3 == 0) {
        graph.Commit();
        times.Commit();
        ++kept;
      } else {
        graph.Rollback();
        times.Rollback();
        CHECK(times.sum() == before);
        ++refused;
      }
      if (i % 20 != 0) continue;
      const OrderGraph anew(problem, graph.ToOrder());
      const SampledTimes fresh(problem, anew, 0.1, 5, 20);
      CHECK(times.sum() == fresh.sum());
      // Without noise every draw is what the simulator says.
      const SampledTimes plain(problem, anew, 0, 5, 16);
      const Plan plan = ToPlan(problem, graph.ToOrder());
      CHECK(plain.sum() == 16 * Simulate(plan, costs).makespan);
      for (int from = 0; from + 1 < graph.length(rank); ++from) {
        const OrderGraph::Move other = graph.Shorten({rank, from, from + 1});
        if (other.from != other.to) CHECK(times.Worse(other) == fresh.Worse(other));
      }
      // The action that ends last in a draw has waited for nothing but what is on its path.
      std::vector<std::pair<int, int>> path;
      times.Path(static_cast<size_t>(i) % times.draws(), &path);
      REQUIRE(!path.empty());
      CHECK(path.front().second == graph.length(path.front().first) - 1);
      CHECK(path.back() == std::pair(0, 0));
    }
    CHECK((kSanitized || kept > 100));
    CHECK((kSanitized || refused > 200));
  }

  TEST_CASE("steady orders are as short as the one there was and the best come first") {
    const CostModel costs = UniformCosts(1'000'000, 1'000'000, 1'000'000, 100'000);
    const SearchProblem problem = Roomy(costs, 4, 12);
    const std::vector<Plan> seeds = {GeneratePlan(MakeSpec("zb-1p", 4, 12, costs)),
                                     GeneratePlan(MakeSpec("zb-2p", 4, 12, costs))};
    SearchOptions options;
    options.noise = 0.1;
    SearchWork work(options);
    const std::optional<Order> order = ToOrder(problem, seeds[1]);
    REQUIRE(order);
    const SearchResult best{*order, Evaluate(problem, *order).makespan, "zb-2p"};
    const std::vector<SearchResult> pool =
        RobustCandidates(problem, seeds, best, options, 500'000, &work);
    REQUIRE(pool.size() >= 2);
    Time last = 0;
    for (const SearchResult& found : pool) {
      const Evaluation evaluation = Evaluate(problem, found.order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(evaluation.makespan == found.makespan);
      CHECK(found.makespan <= best.makespan);
      const Time mean = ExpectedMakespan(problem, found.order, 0.1, 4'000'000, 10);
      CHECK(mean >= last);
      last = mean;
    }
    // Not by chance: on other draws too.
    CHECK(ExpectedMakespan(problem, pool.front().order, 0.1, 77, 60) <
          ExpectedMakespan(problem, best.order, 0.1, 77, 60));
  }

  TEST_CASE("with noise, too, plans that run again or copy are sound and fit") {
    int held_less = 0;
    for (const double limit : {0.5, 0.6, 0.75}) {
      for (const bool offload : {false, true}) {
        Spec spec = MakeSpec("auto", 3, 5, UniformCosts(6, 1, 1));
        spec.costs.memory =
            MemoryCost{.activation_bytes = 60, .w_stash_bytes = 20, .input_bytes = 5};
        spec.costs.host = HostCost{.latency = 5};
        if (offload) {
          spec.offload.choice = Offload::Choice::kAuto;
        } else {
          spec.recompute.choice = Recompute::Choice::kAuto;
        }
        spec.memory_limit = static_cast<int64_t>(limit * 180);
        spec.search.budget = 10'000'000;
        spec.search.noise = 0.1;
        const Plan plan = Compile(spec);
        CAPTURES(limit, offload);
        for (const RankFigures& rank : Simulate(plan, spec.costs).ranks) {
          CHECK(rank.peak_bytes <= *spec.memory_limit);
        }
        held_less += RecomputedCells(plan).any() || OffloadedCells(plan).any();
      }
    }
    CHECK(held_less >= 4);
  }

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
      const std::optional<SearchResult> plain = Search(problem, seeds, bound, options, &work);
      options.noise = 0.1;
      SearchWork more(options);
      REQUIRE(plain);
      SearchResult chosen = *plain;
      LowerExpected(problem, seeds, options, &more, &chosen);
      const SearchResult* const steady = &chosen;
      const Evaluation evaluation = Evaluate(problem, steady->order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(evaluation.makespan <= plain->makespan);
      // Draws that neither has seen.
      const Time of_plain = ExpectedMakespan(problem, plain->order, 0.1, 77, 100);
      const Time of_steady = ExpectedMakespan(problem, steady->order, 0.1, 77, 100);
      before += static_cast<double>(of_plain) / static_cast<double>(plain->makespan);
      after += static_cast<double>(of_steady) / static_cast<double>(plain->makespan);
    }
    CAPTURES(before / 3, after / 3);
    // Noise adds to the three steps, of which each is 1 without.
    CHECK(after - 3 < 0.85 * (before - 3));
  }
}

}  // namespace
}  // namespace contraflow::noise_test
