// The partition that needs least memory, and that `auto` refuses nothing that fits.

#include "schedules/partition/min_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/memory.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "tests/support/failure.h"
#include "tests/support/random_layers.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::min_memory_test {
namespace {

struct Case {
  Spec spec;
  Plan frame;
};

/// Few layers in a placement with one to three stages a rank.
Case Draw(std::mt19937_64* random, int round) {
  const int ranks = 2 + static_cast<int>((*random)() % 2);
  const int kind = round % 4, chunks = kind == 0 ? 3 : kind == 1 ? 2 : 1;
  const int layers = chunks * ranks + static_cast<int>((*random)() % 4);
  Spec spec = MakeSpec("auto", ranks, 2, RandomLayers(random, layers, true));
  for (LayerCost& layer : spec.costs.layers) {
    layer.activation_bytes = 1 + static_cast<int64_t>((*random)() % 20);
    layer.w_stash_bytes = static_cast<int64_t>((*random)() % 2);
    layer.parameter_bytes = static_cast<int64_t>((*random)() % 60);
    layer.output_bytes = 1;
  }
  spec.search.placement = kind == 0   ? Placement::kInterleaved
                          : kind == 1 ? Placement::kV
                          : kind == 2 ? Placement::kBidirectional
                                      : Placement::kLinear;
  if (kind == 0) spec.chunks = chunks;
  spec.search.budget = 1'000'000;
  if ((*random)() % 2 == 0) spec.recompute.choice = Recompute::Choice::kFull;
  if (kind == 2) return {spec, BidirectionalPlan(spec)};
  std::vector<int> owners;
  for (int s = 0; s < chunks * ranks; ++s) owners.push_back(s % ranks);
  return {spec, SingleRoutePlan(spec, kind == 1 ? VPlacement(ranks) : owners)};
}

/// Needs of a micro-batch at a time on the fullest rank: for activations, and with parameters.
std::pair<int64_t, int64_t> Needs(const Case& drawn, LayerStages* layers,
                                  const Partition& partition) {
  const CostModel costs = OnRanks(layers->Make(partition), drawn.frame);
  const bool recomputes = drawn.spec.recompute.choice == Recompute::Choice::kFull;
  const std::vector<int64_t> peaks = SerialPeaks(drawn.frame, costs, recomputes);
  const std::vector<int64_t> nothing(peaks.size(), 0);
  const std::vector<int64_t> rooms = RoomForActivations(drawn.frame, costs, nothing);
  int64_t all = 0;
  for (size_t r = 0; r < peaks.size(); ++r) all = std::max(all, peaks[r] - rooms[r]);
  return {std::ranges::max(peaks), all};
}

TEST_SUITE("property") {
  TEST_CASE("the partition that needs least is found, and auto fits wherever it does") {
    std::mt19937_64 random(17);
    int by_device = 0, recomputed = 0;
    for (int round = 0; round < CasesToDraw(120); ++round) {
      Case drawn = Draw(&random, round);
      Spec& spec = drawn.spec;
      LayerStages layers(spec.costs, Overlap::kAll);
      const bool device = random() % 2 == 0;
      std::optional<int64_t> least;
      for (const Partition& partition : AllPartitions(layers.layers(), drawn.frame.stages)) {
        const auto [peak, all] = Needs(drawn, &layers, partition);
        const int64_t need = device ? all : peak;
        least = std::min(need, least.value_or(need));
      }
      CAPTURE(round);
      (device ? spec.device_memory : spec.memory_limit) = *least;
      const PartitionExcess min_memory = MinMemoryPartition(spec, drawn.frame, &layers);
      CHECK(min_memory.excess == 0);
      const auto [peak, all] = Needs(drawn, &layers, min_memory.partition);
      CHECK((device ? all : peak) == *least);
      CHECK(Failure([&] { Compile(spec); }) == "accepted");
      by_device += device;
      recomputed += spec.recompute.choice == Recompute::Choice::kFull;
      // On devices a published schedule has on each rank what is left there.
      if (device) continue;
      spec.memory_limit = *least - 1;
      const std::string why_not = Failure([&] { Compile(spec); });
      CAPTURE(why_not);
      CHECK(Contains(why_not, "raise it to " + std::to_string(*least)));
    }
    if (kSanitized) return;
    CHECK(by_device > 30);
    CHECK(recomputed > 30);
  }
}

}  // namespace
}  // namespace contraflow::min_memory_test
