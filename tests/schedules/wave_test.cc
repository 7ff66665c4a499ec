// Waves: a placement that goes down the ranks and back again and again, more than two stages a
// rank.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/spec.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "schedules/search/candidates.h"
#include "tests/support/exact_search.h"
#include "tests/support/failure.h"
#include "tests/support/naive.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::wave_test {
namespace {

Spec WaveSpec(int ranks, int chunks, int microbatches, const CostModel& costs) {
  Spec spec = MakeSpec("auto", ranks, microbatches, costs);
  spec.search.placement = Placement::kWave;
  spec.search.budget = 400'000'000;
  spec.chunks = chunks;
  return spec;
}

Time ShortestOf(const Spec& spec, Placement placement) {
  Spec of = spec;
  of.search.placement = placement;
  return GeneratePlan(of).provenance->makespan;
}

TEST_SUITE("property") {
  TEST_CASE("auto is optimal on tiny waves, and no bound is above that") {
    std::mt19937_64 random(81);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    int compared = 0, optimal = 0;
    while (compared < CasesToDraw(60)) {
      const int chunks = draw(3, 4);
      const int microbatches = chunks == 3 ? draw(2, 3) : 2;
      CostModel costs = UniformCosts(10, 10, 10);
      costs.stages.clear();
      for (int s = 0; s < 2 * chunks; ++s) {
        StageCost cost = {.f = draw(2, 12), .b = draw(2, 12), .w = draw(0, 9)};
        cost.bw = cost.b + cost.w;
        cost.fb = cost.f + cost.bw;
        costs.stages.push_back(cost);
      }
      costs.comm.latency = draw(0, 2);
      Spec spec = WaveSpec(2, chunks, microbatches, costs);
      if (draw(0, 1) == 1) spec.memory_limit = chunks + draw(0, chunks);
      const Plan frame = SingleRoutePlan(spec, WavePlacement(2, chunks));
      const ExactResult exact = ExactMakespan(frame, costs, spec.memory_limit, 20'000);
      if (!exact.finished) continue;
      REQUIRE(exact.makespan);
      CAPTURE(compared);
      const Plan plan = GeneratePlan(spec);
      CHECK(plan.routes == frame.routes);
      CHECK(FindingsText(plan) == "");
      const Time makespan = Simulate(plan, costs).makespan;
      CHECK(makespan >= *exact.makespan);
      CHECK(plan.provenance->placement == "wave");
      CHECK(plan.provenance->bound <= *exact.makespan);
      CHECK(ProveBound(plan, costs, spec.memory_limit).value <= *exact.makespan);
      ++compared;
      optimal += makespan == *exact.makespan;
    }
    CHECK(100 * optimal >= 97 * compared);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a wave turns at both ends of the ranks") {
    CHECK(WavePlacement(3, 4) == std::vector<int>{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0});
    CHECK(WavePlacement(2, 3) == std::vector<int>{0, 1, 1, 0, 0, 1});
    CHECK(WavePlacement(4, 2) == VPlacement(4));
  }

  TEST_CASE("a plan of waves runs at every level that stages have") {
    const Plan plan = GeneratePlan(WaveSpec(3, 4, 5, UniformCosts(4, 5, 3)));
    CHECK(plan.stages == 12);
    const Plan lowered = Lower(plan, *plan.costs, {.target = Level::kComm});
    CHECK(RunSymbolically(lowered) == "");
  }

  TEST_CASE("any placement tries waves where there are more than two stages a rank") {
    Spec spec = WaveSpec(2, 4, 3, UniformCosts(3, 4, 2));
    spec.search.placement = Placement::kSingle;
    const std::vector<Candidate> four = CandidatesOf(spec);
    CHECK(std::ranges::any_of(four, [](const Candidate& candidate) {
      return candidate.placement == Placement::kWave &&
             candidate.frame.routes[0].ranks == WavePlacement(2, 4);
    }));
    CHECK(GeneratePlan(spec).provenance->makespan <= ShortestOf(spec, Placement::kWave));
    spec.chunks = 2;
    CHECK(std::ranges::none_of(CandidatesOf(spec), [](const Candidate& candidate) {
      return candidate.placement == Placement::kWave;
    }));
  }

  TEST_CASE("where a wave is the shortest of all") {
    // Few micro-batches and messages without a time: neither end waits long for its backward.
    Spec spec = MakeSpec("auto", 4, 6, {});
    for (const auto& [name, repeat, f] :
         {std::tuple("embedding", 1, 2), std::tuple("block", 32, 100), std::tuple("head", 1, 32)}) {
      LayerCost layer;
      layer.name = name;
      layer.repeat = repeat;
      layer.cost = {.f = f, .b = f, .w = f, .bw = 2 * f, .fb = 3 * f};
      spec.costs.layers.push_back(layer);
    }
    spec.search.budget = 400'000'000;
    const Time wave = ShortestOf(spec, Placement::kWave);
    for (const Placement placement :
         {Placement::kLinear, Placement::kV, Placement::kInterleaved, Placement::kBidirectional}) {
      CAPTURE(Name(placement));
      CHECK(wave < ShortestOf(spec, placement));
    }
    CHECK(ShortestOf(spec, Placement::kAny) <= wave + wave / 100);
  }

  TEST_CASE("what waves refuse") {
    Spec spec = WaveSpec(2, 2, 3, UniformCosts(3, 4, 2));
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto needs at least 3 `chunks` for `placement` wave, has 2; with 2 it is `placement` v");
    spec.costs.stages.clear();
    spec.costs.layers = {
        {.name = "block", .repeat = 16, .cost = UniformCosts(1, 1, 1).stages.front()}};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto needs at least 3 `chunks` for `placement` wave, has 2; with 2 it is `placement` v");
  }
}

}  // namespace
}  // namespace contraflow::wave_test
