// Plans whose stages have unlike layers: other numbers of them, and MoE, dense and plain ones.

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/lower/passes.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/lane_run.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::unlike_stage_test {
namespace {

CommCase DrawCase(std::mt19937_64* random, int round, Overlap overlap) {
  return DrawCommCase(random, round, 5, 10, [&](const Schedule& schedule, Spec* spec) {
    spec->search.budget = 1'000'000;
    spec->search.placement = Placement::kLinear;
    spec->costs = RandomUnlikeCosts(random, schedule.stages(*spec), 3, true, overlap);
  });
}

bool HasPairs(const Plan& plan) {
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (i.op == Op::FB) return true;
    }
  }
  return false;
}

/// Instructions that a plan of components has for its cells.
int64_t ComponentsOf(const CostModel& costs, int microbatches) {
  int64_t count = 0;
  for (const MoeCost& moe : costs.stage_moe) {
    for (const LayerKind kind : moe.kinds) {
      count += kind == LayerKind::kMoe ? 10 : kind == LayerKind::kDense ? 6 : 3;
    }
  }
  return count * microbatches;
}

TEST_SUITE("property") {
  TEST_CASE("unlike stages: sound, run right in any order, and never below the bound") {
    std::mt19937_64 random(71);
    int unlike = 0;
    for (int round = 0; round < CasesToDraw(120); ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kAll);
      CAPTURES(c.plan.schedule, round);
      const Plan serial = ExpandComponents(c.plan, c.costs, Overlap::kPublished, {});
      const Plan shared = ExpandComponents(c.plan, c.costs, Overlap::kAll, {});
      CHECK(FindingsText(serial) == "");
      CHECK(FindingsText(shared) == "");
      unlike += shared.stage_layers.empty() ? 0 : 1;
      const auto seed = static_cast<uint64_t>(round);
      const std::vector<PacedRun> runs = {
          {Pace::kProgramOrder, seed}, {Pace::kRandom, seed}, {Pace::kGreedyLane, seed}};
      CHECK(RunInLanes(shared, runs) == "");
      CHECK(RunInLanes(serial, runs) == "");
      CHECK(InstructionCount(shared) - InstructionCount(c.plan) ==
            ComponentsOf(c.costs, c.plan.microbatches) - [&] {
              int64_t chunks = 0;
              for (const Program& program : c.plan.programs) {
                for (const Instruction& i : program) chunks += WorkOf(i.op) == Work::kCompute;
              }
              return chunks;
            }());
      const Simulation before = Simulate(serial, c.costs), after = Simulate(shared, c.costs);
      CHECK(after.makespan <= before.makespan);
      CHECK(ProveBound(shared, c.costs).value <= after.makespan);
      int most = 1;
      for (const RankFigures& rank : after.ranks) most = std::max(most, rank.peak_activations);
      CHECK(ProveBound(shared, c.costs, most).value <= after.makespan);
      CHECK(ReadPlan(WritePlan(shared), "p.json") == shared);
      CHECK(ReadPlan(WritePlanBinary(shared), "p.cbor") == shared);
    }
    CHECK((kSanitized || unlike > 90));
  }

  TEST_CASE("unlike stages: published overlap takes exactly the time of chunks without pairs") {
    std::mt19937_64 random(72);
    int equal = 0;
    for (int round = 0; round < CasesToDraw(150); ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kPublished);
      CAPTURES(c.plan.schedule, round);
      if (HasPairs(c.plan)) continue;
      const Plan plan = ExpandComponents(c.plan, c.costs, Overlap::kPublished, {});
      const Simulation chunks = Simulate(c.plan, c.costs), parts = Simulate(plan, c.costs);
      CHECK(parts.makespan <= chunks.makespan);
      bool alone = true;
      for (const StageCost& stage : c.costs.stages) alone = alone && stage.reduce == 0;
      if (alone) CHECK(parts.makespan == chunks.makespan);
      equal += alone;
      for (size_t r = 0; r < chunks.ranks.size(); ++r) {
        CHECK(parts.ranks[r].peak_activations == chunks.ranks[r].peak_activations);
      }
    }
    CHECK((kSanitized || equal > 10));
  }

  TEST_CASE("unlike stages: what is recomputed runs again, whatever its layers are") {
    std::mt19937_64 random(73);
    for (int round = 0; round < CasesToDraw(60); ++round) {
      CommCase c = DrawCase(&random, round, Overlap::kAll);
      CAPTURES(c.plan.schedule, round);
      Plan compute = c.plan;
      compute.level = Level::kCompute;
      for (Program& program : compute.programs) {
        Program with;
        for (const Instruction& i : program) {
          if (WorkOf(i.op) != Work::kCompute) continue;
          if (HasBackward(i.op) && BackStage(i) % 2 == round % 2) {
            with.push_back(CellOp(Op::R, BackStage(i), BackMicrobatch(i)));
          }
          with.push_back(i);
        }
        program = with;
      }
      c.costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 40, .input_bytes = 10};
      const Plan plan = Lower(compute, c.costs, {.target = Level::kComponent});
      const auto seed = static_cast<uint64_t>(round);
      CHECK(RunInLanes(plan, {{Pace::kRandom, seed}, {Pace::kGreedyLane, seed}}) == "");
      const RecomputedCells cells(plan);
      for (int s = 0; s < plan.stages; ++s) {
        CHECK(cells.HasStage(s) == (s % 2 == round % 2));
        CHECK(cells.extent(s).whole());
      }
      CHECK(ProveBound(plan, c.costs).value <= Simulate(plan, c.costs).makespan);
    }
  }
}

Plan TwoStages() {
  CostModel costs;
  const auto moe = [](const char* kinds) {
    MoeCost cost;
    cost.kinds = ParseStageLayers(kinds);
    cost.layers_per_stage = static_cast<int>(cost.kinds.size());
    for (const ComponentCost& component : kComponentCosts) {
      for (const LayerKind kind : cost.kinds) {
        (cost.*component.times).push_back(Has(kind, component.op) ? 1'000'000 : 0);
      }
    }
    return cost;
  };
  costs.stage_moe = {moe("pd"), moe("m")};
  costs.stages = {
      {.f = 3'000'000, .b = 3'000'000, .w = 3'000'000, .bw = 6'000'000, .fb = 9'000'000},
      {.f = 4'000'000, .b = 4'000'000, .w = 2'000'000, .bw = 5'000'000, .fb = 9'000'000}};
  costs.derived = Overlap::kAll;
  return Lower(GeneratePlan(MakeSpec("1f1b", 2, 1, costs)), costs, {.target = Level::kComponent});
}

TEST_SUITE("unit") {
  TEST_CASE("unlike stages: each has the components of its own layers") {
    const Plan plan = TwoStages();
    CHECK(plan.layers == 2);
    CHECK(ToString(plan.stage_layers[0]) == "pd");
    CHECK(ToString(plan.stage_layers[1]) == "m");
    std::string text;
    for (const Program& program : plan.programs) {
      for (Instruction i : program) {
        i.lane = Lane::kNone;
        i.after_count = 0;
        text += ToString(i) + "\n";
      }
    }
    CHECK(text == R"(ATTN_F s0 l0 m0
ATTN_F s0 l1 m0
MLP_F s0 l1 m0
SEND_F s0 m0 to=1
RECV_B s0 m0 from=1
MLP_B s0 l1 m0
MLP_W s0 l1 m0
ATTN_B s0 l1 m0
ATTN_W s0 l1 m0
ATTN_B s0 l0 m0
ATTN_W s0 l0 m0
STEP s0
RECV_F s1 m0 from=0
ATTN_F s1 l0 m0
DISPATCH_F s1 l0 m0
MLP_F s1 l0 m0
COMBINE_F s1 l0 m0
COMBINE_B s1 l0 m0
MLP_B s1 l0 m0
MLP_W s1 l0 m0
DISPATCH_B s1 l0 m0
ATTN_B s1 l0 m0
SEND_B s1 m0 to=0
ATTN_W s1 l0 m0
STEP s1
)");
  }

  TEST_CASE("unlike stages: what a layer does not have is refused") {
    Plan plan = TwoStages();
    plan.programs[0][1].op = Op::COMBINE_F;
    CHECK(Contains(FindingsText(plan), "layer 1 of stage 0 is dense, which has no COMBINE_F"));
    plan = TwoStages();
    plan.programs[0][0].op = Op::MLP_F;
    CHECK(Contains(FindingsText(plan), "layer 0 of stage 0 is plain, which has no MLP_F"));
    plan = TwoStages();
    plan.stage_layers.pop_back();
    CHECK(FindingsText(plan) ==
          "shape: stage_layers has 1 entries, must have one for each of the 2 stages\n");
    plan = TwoStages();
    plan.layers = 3;
    CHECK(FindingsText(plan) ==
          "shape: stage_layers has up to 2 layers a stage, and layers is 3; they must agree\n");
    plan = TwoStages();
    plan.level = Level::kBuffer;
    plan.slots.resize(2);
    CHECK(Contains(FindingsText(plan), "level buffer has values of MoE layers only"));
  }

  TEST_CASE("unlike stages: files say where they do not hold") {
    const std::string text = WritePlan(TwoStages());
    CHECK(Contains(text, "\"stage_layers\": [\"pd\",\"m\"]"));
    const auto failure = [&](const std::string& old, const std::string& other) {
      std::string changed = text;
      const size_t at = changed.find(old);
      REQUIRE(at != std::string::npos);
      return Failure([&] { ReadPlan(changed.replace(at, old.size(), other), "p.json"); });
    };
    CHECK(failure("[\"pd\",\"m\"]", "[\"pd\"]") ==
          "p.json: /stage_layers: must have one entry for each of the 2 stages, has 1");
    CHECK(failure("[\"pd\",\"m\"]", "[\"px\",\"m\"]") ==
          "p.json: /stage_layers/0: layers are m (MoE), d (dense) or p (plain), not \"x\"");
    CHECK(failure("[\"pd\",\"m\"]", "[\"\",\"m\"]") ==
          "p.json: /stage_layers/0: must have a letter for each layer, is empty");
    CHECK(failure("[\"pd\",\"m\"]", "[\"pm\",\"m\"]") ==
          "p.json: /costs: stage 0 of this plan has the layers pm (m MoE, d dense, p plain), the "
          "costs have pd there; give the costs that it was compiled with");
    CHECK(failure("\"stage_layers\"", "\"layers\": 2, \"stage_layers\"") ==
          "p.json: /stage_layers: says what \"layers\" says of stages alike; keep one of them");
  }
}

}  // namespace
}  // namespace contraflow::unlike_stage_test
