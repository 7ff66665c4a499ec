// Partition and order of interleaved placements together, from passes of different sizes.

#include "schedules/partition/tuned.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/partition/partition.h"
#include "schedules/published/placement.h"
#include "tests/support/support.h"

namespace contraflow::tuned_test {
namespace {

constexpr Time kLayer = 1'000'000;

/// Layers of a large language model: alike but for a light embedding and a head.
CostModel LayersOf(int dense) {
  CostModel costs;
  const auto add = [&](const char* name, int repeat, Time f) {
    const StageCost cost = {
        .f = f, .b = f * 106 / 100, .w = f * 96 / 100, .bw = f * 202 / 100, .fb = f * 302 / 100};
    costs.layers.push_back({.name = name, .repeat = repeat, .cost = cost});
  };
  add("embedding", 1, kLayer / 50);
  add("dense", dense, kLayer);
  add("head", 1, kLayer * 63 / 100);
  costs.comm.latency = kLayer * 24 / 100;
  return costs;
}

Plan Interleaved(int ranks, int chunks) {
  std::vector<int> owners;
  for (int s = 0; s < ranks * chunks; ++s) owners.push_back(s % ranks);
  return SingleRoutePlan(MakeSpec("", ranks, ranks, UniformCosts(1, 1, 1)), owners);
}

std::vector<int> LayersOfRanks(const Plan& frame, const Partition& partition) {
  std::vector<int> layers(static_cast<size_t>(frame.ranks), 0);
  for (size_t s = 0; s < partition.size(); ++s) {
    layers[static_cast<size_t>(frame.routes[0].ranks[s])] += partition[s];
  }
  return layers;
}

TEST_SUITE("unit") {
  TEST_CASE("uneven passes: a rank keeps its layers, and stages have one at least") {
    for (const Plan& frame :
         {Interleaved(4, 3),
          SingleRoutePlan(MakeSpec("", 3, 4, UniformCosts(1, 1, 1)), WavePlacement(3, 4))}) {
      const Partition even = EvenPartition(2 * frame.stages - 3, frame.stages);
      const std::vector<Partition> uneven = UnevenPasses(frame, {even});
      CHECK(uneven.size() > 6);
      CHECK(std::set(uneven.begin(), uneven.end()).size() == uneven.size());
      for (const Partition& partition : uneven) {
        CHECK(partition != even);
        CHECK(std::ranges::min(partition) >= 1);
        CHECK(LayersOfRanks(frame, partition) == LayersOfRanks(frame, even));
      }
    }
    // Small stages in the first pass of the ranks in front, and in the last one of those after.
    const std::vector<Partition> uneven =
        UnevenPasses(Interleaved(4, 3), {{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}});
    CHECK(std::ranges::count(uneven, Partition{1, 1, 2, 2, 3, 3, 2, 2, 2, 2, 2, 2}) == 1);
    CHECK(std::ranges::count(uneven, Partition{2, 2, 2, 2, 2, 2, 3, 3, 2, 2, 1, 1}) == 1);
    CHECK(std::ranges::count(uneven, Partition{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}) == 1);
  }

  TEST_CASE("uneven passes: none without passes") {
    CHECK(UnevenPasses(Interleaved(4, 1), {{2, 2, 2, 2}}).empty());
    CHECK(UnevenPasses(BidirectionalPlan(MakeSpec("", 4, 4, UniformCosts(1, 1, 1))), {{2, 2, 2, 2}})
              .empty());
    CHECK(UnevenPasses(Interleaved(4, 2), {{1, 1, 1, 1, 1, 1, 1, 1}}).empty());
  }

  TEST_CASE("full stretches: the fuller stages are neighbours, wherever they begin") {
    for (const int layers : {8, 11, 13, 23, 24}) {
      const std::vector<Partition> partitions = FullStretches(layers, 8);
      CHECK(partitions.empty() == (layers % 8 == 0));
      CHECK(std::set(partitions.begin(), partitions.end()).size() == partitions.size());
      for (const Partition& partition : partitions) {
        CHECK(partition.size() == 8);
        CHECK(std::accumulate(partition.begin(), partition.end(), 0) == layers);
        const auto full = [&](int stage) { return stage > layers / 8; };
        const auto first = std::ranges::find_if(partition, full);
        CHECK(std::all_of(first, first + layers % 8, full));
      }
    }
    const std::vector<Partition> all = FullStretches(6, 4);
    CHECK(all == std::vector<Partition>{{2, 2, 1, 1}, {1, 2, 2, 1}, {1, 1, 2, 2}});
  }

  TEST_CASE("layers and rules tuned together: what is found runs and fits, the same each time") {
    const Plan frame = Interleaved(6, 4);
    LayerStages layers(LayersOf(46), Overlap::kAll);
    for (const std::optional<int64_t> limit :
         {std::optional<int64_t>(), std::optional<int64_t>(14)}) {
      const auto problem_of = [&](const Partition& partition) -> std::optional<SearchProblem> {
        return MakeProblem(frame, layers.Make(partition), limit);
      };
      const Partition even = EvenPartition(48, 24);
      std::vector<Partition> starts = UnevenPasses(frame, {even});
      starts.insert(starts.begin(), even);
      const auto tune = [&](Time bound, uint64_t seed) {
        SearchOptions options;
        options.budget = 100'000'000;
        SearchWork work(options);
        return TuneTogether(frame, starts, problem_of, bound, seed, &work);
      };
      const std::optional<TunedPartition> tuned = tune(0, 3);
      REQUIRE(tuned);
      CHECK(std::accumulate(tuned->partition.begin(), tuned->partition.end(), 0) == 48);
      const Evaluation evaluation = Evaluate(*problem_of(tuned->partition), tuned->found.order);
      CHECK(evaluation.runs);
      CHECK(evaluation.fits);
      CHECK(evaluation.makespan == tuned->found.makespan);
      const std::optional<TunedPartition> again = tune(0, 3);
      CHECK(again->partition == tuned->partition);
      CHECK(again->found.order == tuned->found.order);
      // Any schedule is enough for a bound that all reach.
      CHECK(tune(1000 * kLayer, 3)->found.makespan > tuned->found.makespan);
    }
    // A limit that nothing fits in.
    SearchWork work{SearchOptions()};
    CHECK(!TuneTogether(
        frame, {EvenPartition(48, 24)}, [](const Partition&) { return std::nullopt; }, 0, 0,
        &work));
  }
}

TEST_SUITE("property") {
  TEST_CASE("auto takes a depth and passes of sizes that only tuning finds") {
    // 213.7 with stages that are searched one partition after the other, and with even depths.
    Spec spec = MakeSpec("auto", 8, 8, LayersOf(62));
    spec.search.placement = Placement::kSingle;
    spec.search.budget = 1'000'000'000;
    const Plan plan = Compile(spec);
    CHECK(Verify(plan).empty());
    const Time makespan = Simulate(plan, *plan.costs).makespan;
    CHECK(plan.provenance->makespan == makespan);
    CHECK(plan.stages > 2 * 8);
    CHECK(10 * makespan < 2137 * kLayer);
  }
}

}  // namespace
}  // namespace contraflow::tuned_test
