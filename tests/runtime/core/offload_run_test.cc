// Training with activations in the memory of the host equals training without a pipeline, bit for
// bit, at every level of a plan; and the arenas are smaller by what is away.

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <utility>

#include "compiler/lower/lower.h"
#include "runtime/model/views.h"
#include "schedules/recompute/offload.h"
#include "schedules/registry.h"
#include "tests/support/offload_all.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::offload_run_test {
namespace {

TEST_SUITE("equivalence") {
  TEST_CASE("equivalence: schedules whose cells all go to the host and back") {
    for (const int ranks : {2, 4}) {
      for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "dualpipe", "interleaved-1f1b"}) {
        CostModel costs = UniformCosts(3, 4, 2, 1);
        costs.host = HostCost{.latency = 2};
        const Plan plan = OffloadAll(GeneratePlan(MakeSpec(schedule, ranks, 8, costs)));
        CAPTURES(schedule, ranks);
        CHECK(TrainBesideReference(Lower(plan, costs, {.target = Level::kComm}),
                                   SmallModel(plan.stages))
                  .difference == "");
      }
    }
  }

  TEST_CASE("equivalence: offloaded components and buffers of expert groups that drop tokens") {
    std::mt19937_64 random(3);
    for (const std::string schedule : {"dualpipe", "zb-v", "1f1b"}) {
      const Model model = GroupModel(0.6f);
      for (const int members : {1, 2}) {
        for (const Level level : {Level::kComponent, Level::kBuffer}) {
          CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
          costs.host = HostCost{.latency = 2};
          Plan plan = OffloadAll(GeneratePlan(MakeSpec(schedule, 2, 4, costs)));
          plan.expert_parallel = members;
          costs.memory = FootprintOf(model, plan.stages, costs.moe->layers_per_stage, members);
          CAPTURES(schedule, members);
          CHECK(TrainBesideReference(Lower(plan, costs, {.target = level}), model).difference ==
                "");
        }
      }
    }
  }

  TEST_CASE("equivalence: offloading takes less memory") {
    const Model model = GroupModel();
    std::mt19937_64 random(3);
    CostModel costs = RandomMoeCosts(&random, 2, Overlap::kPublished);
    costs.host = HostCost{.latency = 1};
    costs.memory = FootprintOf(model, 2, costs.moe->layers_per_stage, 1);
    const Plan order = GeneratePlan(MakeSpec("gpipe", 2, 8, costs));
    const auto activations = [&](const Plan& plan) {
      const Plan lowered =
          Lower(plan, costs, {.target = Level::kBuffer, .overlap = Overlap::kPublished});
      const auto arenas = ArenaBytes(lowered.slots[0]);
      return arenas[static_cast<size_t>(Arena::kActivation)] +
             arenas[static_cast<size_t>(Arena::kStash)];
    };
    // Eight micro-batches are under way on rank 0, and nothing but one forward holds up the link.
    CHECK(3 * activations(OffloadStages(order, costs, {0, 1})) < 2 * activations(order));
  }
}

}  // namespace
}  // namespace contraflow::offload_run_test
