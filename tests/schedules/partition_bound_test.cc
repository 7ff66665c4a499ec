// The bound for any partition of a model's layers. More tiny cases against the exact search, and
// others: CONTRAFLOW_EXACT=2000 CONTRAFLOW_SEED=2 contraflow_schedules_test
// -tc="no bound for any partition is above*".

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/partition.h"
#include "schedules/published/placement.h"
#include "tests/support/exact_search.h"
#include "tests/support/random_layers.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::partition_bound_test {
namespace {

/// Embedding, blocks and a head that costs as much as three of them.
Spec BlocksAndHead(int ranks, int microbatches, int blocks) {
  const auto of = [](const char* name, int repeat, Time f, Time b, Time w) {
    LayerCost layer;
    layer.name = name;
    layer.repeat = repeat;
    layer.cost = {.f = f, .b = b, .w = w, .bw = b + w, .fb = f + b + w};
    return layer;
  };
  CostModel costs;
  costs.layers = {of("embedding", 1, 50, 0, 90), of("block", blocks, 100, 110, 90),
                  of("head", 1, 300, 300, 280)};
  costs.comm.latency = 5;
  return MakeSpec("zb-2p", ranks, microbatches, costs);
}

/// Bound for any partition into one stage a rank.
PartitionBound BoundOfLinear(const Spec& spec, LayerStages* stages, Time enough) {
  return BoundOfPartitions(spec, stages, SingleRoutePlan(spec, LinearPlacement(spec.ranks)),
                           enough);
}

/// Makes a layer one of components, each with some ticks.
void GiveComponents(std::mt19937_64* random, LayerCost* layer) {
  layer->moe.emplace().layers_per_stage = 1;
  for (const ComponentCost& component : kComponentCosts) {
    (*layer->moe.*component.times) = {1 + static_cast<Time>((*random)() % 4)};
  }
}

TEST_SUITE("property") {
  TEST_CASE("no bound for any partition is above the best of all partitions and orders") {
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 77)));
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(500));
    int cases = 0, reached = 0, limited = 0, unlike = 0, deep = 0, components = 0, scaled = 0;
    for (int round = 0; cases < wanted && round < 3 * wanted; ++round) {
      const int kind = static_cast<int>(random() % 5);
      const int ranks = kind == 4 ? 2 : 2 + static_cast<int>(random() % 2);
      const int chunks = kind < 2 ? 1 : kind == 4 ? 3 : 2;
      const int layers = ranks * chunks + static_cast<int>(random() % 3);
      const int few = kind == 4 ? 1 : 2;
      Spec spec = MakeSpec("", ranks, kind == 1 ? 2 : few + static_cast<int>(random() % 2),
                           RandomLayers(&random, layers, true));
      const bool moe = random() % 3 == 0;
      for (LayerCost& layer : spec.costs.layers) {
        if (moe && random() % 2 == 0) GiveComponents(&random, &layer);
      }
      for (LayerCost& layer : spec.costs.layers) {
        if (random() % 3 == 0) layer.cost.fb -= layer.cost.fb / 4;
        layer.cost.fb = std::max({layer.cost.fb, layer.cost.f, layer.cost.b, layer.cost.w});
        if (layer.moe) layer.cost = {};
      }
      if (random() % 2 == 0) {
        spec.memory_limit = 10 + static_cast<int64_t>(random() % 40);
      }
      if (kind != 1 && random() % 3 == 0) {
        for (int r = 0; r < ranks; ++r) {
          const double speed = 0.5 + 0.3 * static_cast<double>(random() % 4);
          spec.costs.ranks.push_back({.speed = speed, .memory_bytes = {}});
        }
      }
      if (random() % 4 == 0) {
        for (int m = 0; m < spec.microbatches; ++m) {
          spec.costs.microbatch_scale.push_back(0.25 * static_cast<double>(1 + random() % 4));
        }
        ++scaled;
      }
      Plan frame = kind == 1   ? BidirectionalPlan(spec)
                   : kind == 2 ? SingleRoutePlan(spec, VPlacement(ranks))
                               : SingleRoutePlan(spec, LinearPlacement(ranks));
      if (kind >= 3) {
        std::vector<int> owners;
        for (int s = 0; s < chunks * ranks; ++s) owners.push_back(s % ranks);
        frame = SingleRoutePlan(spec, owners);
      }
      LayerStages stages(spec.costs, Overlap::kAll);
      std::optional<Time> best;
      bool all = true;
      for (const Partition& partition : AllPartitions(layers, ranks * chunks)) {
        const CostModel costs = OnRanks(stages.Make(partition), frame);
        if (spec.memory_limit && SerialPeak(frame, costs, false) > *spec.memory_limit) continue;
        const ExactResult exact = ExactMakespan(frame, costs, spec.memory_limit, 3'000);
        all = all && exact.finished;
        if (!exact.makespan || (best && *exact.makespan >= *best)) continue;
        best = exact.makespan;
      }
      if (!all || !best) continue;
      CAPTURES(round, kind);
      const Time bound = BoundOfPartitions(spec, &stages, frame, *best + 1'000).value;
      CHECK(bound <= *best);
      // The less is enough, the more is left out.
      CHECK(BoundOfPartitions(spec, &stages, frame, *best + 1).value <= *best);
      CHECK(BoundOfPartitions(spec, &stages, frame, *best / 2).value <= *best / 2);
      ++cases;
      reached += bound == *best;
      limited += spec.memory_limit.has_value();
      unlike += !spec.costs.ranks.empty();
      deep += kind == 4;
      components += moe;
    }
    MESSAGE("the bound for any partition is the optimum of " << reached << " of " << cases);
    CHECK(cases == wanted);
    if (kSanitized) return;  // too few to have some of each
    CHECK(deep > cases / 20);
    CHECK(components > cases / 5);
    CHECK(limited > cases / 50);
    CHECK(unlike > cases / 20);
    CHECK(scaled > cases / 20);
    CHECK(reached > cases / 10);
  }

  TEST_CASE("a bound that is enough leaves out nothing below it") {
    std::mt19937_64 random(79);
    int fitting = 0;
    for (int round = 0; round < CasesToDraw(100); ++round) {
      const int ranks = 2 + round % 7, layers = ranks + static_cast<int>(random() % 20);
      Spec spec = MakeSpec("", ranks, 1 + static_cast<int>(random() % 12),
                           RandomLayers(&random, layers, true));
      if (round % 2 == 0) spec.memory_limit = 20 + static_cast<int64_t>(random() % 100);
      for (int r = 0; round % 3 == 0 && r < ranks; ++r) {
        const double speed = 0.5 + 0.3 * static_cast<double>(random() % 4);
        spec.costs.ranks.push_back({.speed = speed, .memory_bytes = {}});
      }
      LayerStages stages(spec.costs, Overlap::kAll);
      constexpr Time kMuch = 1'000'000'000;
      const Time least = BoundOfLinear(spec, &stages, kMuch).value;
      CAPTURES(round, least);
      if (least == kMuch) continue;  // nothing fits
      ++fitting;
      for (const Time enough : {least / 2, least, least + 1, least + 2, 2 * least}) {
        CHECK(BoundOfLinear(spec, &stages, enough).value == std::min(least, enough));
      }
    }
    CHECK(fitting > CasesToDraw(100) / 2);
  }

  TEST_CASE("no bound for any partition into several stages a rank is above what a search finds") {
    std::mt19937_64 random(78);
    for (int round = 0; round < CasesToDraw(48); ++round) {
      const int ranks = 2 + round % 3, layers = 3 * ranks + static_cast<int>(random() % 3);
      // Few micro-batches wait in each pass, and many save in pairs.
      const bool saves = round % 8 < 4;
      const int microbatches = saves ? 6 * ranks : ranks;
      const bool limited = round % 3 == 0;
      Spec spec = MakeSpec("auto", ranks, microbatches, RandomLayers(&random, layers, limited));
      if (limited) {
        int64_t all = 0;
        for (const LayerCost& layer : spec.costs.layers) {
          all += layer.repeat * layer.activation_bytes;
        }
        spec.memory_limit = all * (3 + static_cast<int>(random() % 4)) / 4;
      }
      for (LayerCost& layer : spec.costs.layers) {
        StageCost& cost = layer.cost;
        if (round % 2 == 0) cost = {.f = 4, .b = 4, .w = 4, .bw = 8, .fb = 0};
        cost.fb = saves ? std::max(cost.f, cost.bw) : cost.f + cost.bw;
      }
      spec.search.placement = round % 4 < 2 ? Placement::kInterleaved : Placement::kV;
      spec.chunks = round % 4 < 2 ? 3 : 0;
      spec.search.budget = 20'000'000;
      CAPTURE(round);
      const Plan plan = Compile(spec);
      const Time found = Simulate(plan, *plan.costs).makespan;
      LayerStages stages(spec.costs, Overlap::kAll);
      CHECK(BoundOfPartitions(spec, &stages, plan, 2 * found).value <= found);
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("the bound for one stage a rank is exact however many layers and ranks there are") {
    // Some rank has nine blocks: 256 x 9 x 300, and what is around them, as on 8 and 16 ranks.
    const Spec spec = BlocksAndHead(64, 256, 510);
    LayerStages stages(spec.costs, Overlap::kAll);
    for (const Time enough : {Time{692'100}, Time{707'985}, Time{2'000'000}, INT64_MAX}) {
      const PartitionBound bound = BoundOfLinear(spec, &stages, enough);
      REQUIRE(bound.value == 692'055);
      CHECK(std::accumulate(bound.partition.begin(), bound.partition.end(), 0) == 512);
      CHECK(std::ranges::max(bound.partition) == 9);
    }
    CHECK(BoundOfLinear(spec, &stages, 692'000).value == 692'000);

    // A layer each and two blocks more than ranks: the head alone is the longest.
    const Spec deep = BlocksAndHead(1024, 1024, 1024);
    LayerStages of_deep(deep.costs, Overlap::kAll);
    const PartitionBound bound = BoundOfLinear(deep, &of_deep, 2'000'000);
    CHECK(bound.value >= 1024 * 880);
    CHECK(bound.partition.size() == 1024);
  }
}

}  // namespace
}  // namespace contraflow::partition_bound_test
