// Training with recompute equals training without a pipeline, bit for bit: what R makes is what F
// made, router choices included, at every level of a plan; and nothing is counted twice.

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/memory.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_run_test {
namespace {

/// Plan of components, for expert groups of this many members, with the memory of the model.
Plan LoweredPlan(std::string_view schedule, const Model& model, int members, Level level,
                 const std::vector<int>& stages, RecomputePart part = RecomputePart::kFull) {
  std::mt19937_64 random(3);
  CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
  Plan plan = GeneratePlan(MakeSpec(schedule, 2, 4, costs));
  plan.expert_parallel = members;
  costs.memory = FootprintOf(model, plan.stages, costs.moe->layers_per_stage, members);
  return Lower(InsertRecompute(std::move(plan), stages, part), costs, {.target = level});
}

TEST_SUITE("equivalence") {
  TEST_CASE("equivalence: every schedule with any stages recomputed") {
    std::mt19937_64 random(1);
    int count = 0;
    for (const Schedule* schedule : Schedules()) {
      const CostModel costs = UniformCosts(3, 4, 2, 1);
      const Spec spec = MakeSpec(schedule->name, 4, 8, costs);
      if (!schedule->reject(spec).empty()) continue;
      const Plan plan = GeneratePlan(spec);
      std::vector<int> stages = {plan.stages - 1};
      for (int s = plan.stages - 1; s-- > 0;) {
        if (random() % 2 == 0) stages.insert(stages.begin(), s);
      }
      CAPTURE(spec.schedule);
      const Plan with = HoistRecompute(InsertRecompute(plan, stages), costs, std::nullopt);
      CHECK(TrainBesideReference(Lower(with, costs, {.target = Level::kComm}),
                                 SmallModel(plan.stages))
                .difference == "");
      ++count;
    }
    CHECK(count >= 5);
  }

  TEST_CASE("equivalence: recomputed components and buffers of expert groups that drop tokens") {
    for (const std::string schedule : {"dualpipe", "zb-v", "1f1b"}) {
      const Model model = GroupModel(0.6f);
      const std::vector<int> all = schedule == "zb-v" ? std::vector{0, 1, 2, 3} : std::vector{0, 1};
      CAPTURE(schedule);
      const int64_t dropped =
          TrainBesideReference(LoweredPlan(schedule, model, 2, Level::kBuffer, {}), model).dropped;
      CHECK(dropped > 0);
      for (const Level level : {Level::kComponent, Level::kBuffer}) {
        const TrainingOutcome outcome =
            TrainBesideReference(LoweredPlan(schedule, model, 2, level, all), model);
        CHECK(outcome.difference == "");
        CHECK(outcome.dropped == dropped);
      }
      CHECK(TrainBesideReference(LoweredPlan(schedule, model, 1, Level::kBuffer, {1}), model)
                .difference == "");
    }
  }

  TEST_CASE("equivalence: attention, experts or all but attention recomputed") {
    std::mt19937_64 random(4);
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "dualpipe", "interleaved-1f1b"}) {
      for (const RecomputePart part :
           {RecomputePart::kAttention, RecomputePart::kExperts, RecomputePart::kAllButAttention}) {
        for (const int ranks : {2, 4}) {
          if (kSanitized && ranks == 4) continue;
          const Model model = GroupModel();
          CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
          const Plan order = GeneratePlan(MakeSpec(schedule, ranks, 2 * ranks, costs));
          costs.memory = FootprintOf(model, order.stages, costs.moe->layers_per_stage, 1);
          const Plan with = InsertRecompute(order, {0, order.stages - 1}, part);
          for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
            CAPTURES(schedule, Name(part), Name(level));
            CHECK(TrainBesideReference(Lower(with, costs, {.target = level}), model).difference ==
                  "");
          }
        }
      }
    }
  }

  TEST_CASE("equivalence: the first layers of stages recomputed, and the bytes of it") {
    constexpr int kLayers = 3;
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v"}) {
      CostModel costs;
      costs.moe = MoeCost{kLayers, {3}, {1}, {4}, {1}, {1}, {5}, {1}, {4}, {3}, {2}};
      DeriveChunkCosts(&costs, Overlap::kAll);
      const Plan order = GeneratePlan(MakeSpec(schedule, 2, 4, costs));
      Model model = GroupModel();
      model.layers = kLayers * order.stages;
      costs.memory = FootprintOf(model, order.stages, kLayers, 1);
      std::vector<int> stages(static_cast<size_t>(order.stages));
      std::iota(stages.begin(), stages.end(), 0);
      int64_t before = std::numeric_limits<int64_t>::max();
      for (int k = 1; k <= kLayers; ++k) {
        const Plan with = InsertRecompute(order, stages, {RecomputePart::kFull, k});
        CAPTURES(schedule, k);
        for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
          CAPTURE(Name(level));
          const Plan plan = Lower(with, costs, {.target = level});
          CHECK(TrainBesideReference(plan, model, {.fill = true}).difference == "");
          if (level != Level::kBuffer) continue;
          const Dataset dataset = SmallDataset();
          ThreadedRun run(plan, model, dataset, 7, {});
          const std::vector<MemoryFigures> figures = MemoryOf(plan, *plan.costs);
          int64_t held = 0;
          for (const Device& device : run.devices()) {
            const MemoryFigures& predicted = figures[static_cast<size_t>(device.rank)];
            CHECK(run.At(device).arena_bytes() == predicted.arenas);
            held += predicted.arenas[static_cast<size_t>(Arena::kActivation)] +
                    predicted.arenas[static_cast<size_t>(Arena::kStash)];
          }
          CHECK(held < before);
          before = held;
        }
      }
    }
  }

  TEST_CASE("equivalence: more layers recomputed than the model has are refused") {
    const Plan plan =
        Lower(InsertRecompute(GeneratePlan(MakeSpec("1f1b", 2, 2, UniformCosts(1, 1, 1))), {1},
                              {RecomputePart::kFull, 5}),
              UniformCosts(1, 1, 1), {.target = Level::kComm});
    Model model = GroupModel();
    model.layers = 4;
    CHECK(TrainBesideReference(plan, model).difference ==
          "the plan recomputes the first 5 layers of stage 1, which has 2 in model \"" +
              model.name + "\"; compile it with `recompute` layers=2 or less, or full");
  }

  TEST_CASE("equivalence: recompute takes less memory") {
    const Model model = GroupModel();
    const auto activations = [&](const std::vector<int>& stages,
                                 RecomputePart part = RecomputePart::kFull) {
      const Plan plan = LoweredPlan("gpipe", model, 1, Level::kBuffer, stages, part);
      const auto arenas = ArenaBytes(plan.slots[0]);
      return arenas[static_cast<size_t>(Arena::kActivation)] +
             arenas[static_cast<size_t>(Arena::kStash)];
    };
    // Four micro-batches are under way, and one of them at a time has more than its input.
    CHECK(3 * activations({0}) < 2 * activations({}));
    for (const RecomputePart part :
         {RecomputePart::kAttention, RecomputePart::kExperts, RecomputePart::kAllButAttention}) {
      CHECK(activations({0, 1}, part) < activations({}));
      CHECK(activations({0, 1}) < activations({0, 1}, part));
    }
  }
}

}  // namespace
}  // namespace contraflow::recompute_run_test
