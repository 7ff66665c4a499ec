// Training with a pipeline equals training without one, bit for bit: every loss, every gradient and
// every updated weight on every rank that holds a copy, for every schedule.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "runtime/launch/threaded_run.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::equivalence_test {
namespace {

/// Uneven costs, so that the order of the instructions is not a special case of equal ones.
Spec SpecOf(std::string_view schedule, int ranks, int microbatches, int data_parallel) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, UniformCosts(3, 4, 2, 1));
  spec.data_parallel = data_parallel;
  return spec;
}

/// "", or what differs from training without a pipeline, strictly or not.
std::string Compare(const Plan& plan, const Model& model, int steps = 2) {
  for (const bool strict : {false, true}) {
    const std::string difference =
        TrainBesideReference(plan, model, {.strict = strict, .steps = steps}).difference;
    if (!difference.empty()) return (strict ? "strictly: " : "") + difference;
  }
  return "";
}
std::string Compare(const Plan& plan, int steps = 2) {
  return Compare(plan, SmallModel(plan.stages), steps);
}

/// Runs every schedule that takes this size; returns how many did.
int CompareSchedules(int ranks, int microbatches, int data_parallel) {
  int count = 0;
  for (const Schedule* schedule : Schedules()) {
    const Spec spec = SpecOf(schedule->name, ranks, microbatches, data_parallel);
    if (!schedule->reject(spec).empty()) continue;
    const Plan plan = Compile(spec);
    CAPTURES(spec.schedule, ranks, microbatches, data_parallel);
    CHECK(Compare(plan) == "");
    ++count;
  }
  return count;
}

TEST_SUITE("equivalence") {
  TEST_CASE("equivalence: one rank") {
    CHECK(CompareSchedules(1, 2, 1) >= 3);
    CHECK(CompareSchedules(1, 3, 2) >= 3);
  }
  TEST_CASE("equivalence: two ranks") {
    CHECK(CompareSchedules(2, 4, 1) >= 5);
    CHECK(CompareSchedules(2, 6, 2) >= 5);
    if (!kSanitized) CHECK(CompareSchedules(2, 5, 1) >= 3);
  }
  TEST_CASE("equivalence: four ranks") {
    CHECK(CompareSchedules(4, 8, 1) >= 5);
    if (!kSanitized) CHECK(CompareSchedules(4, 10, 2) >= 5);
  }
  TEST_CASE("equivalence: eight ranks") {
    if (!kSanitized) CHECK(CompareSchedules(8, 16, 1) >= 5);
  }

  TEST_CASE("equivalence: interleaved with other numbers of chunks and rounds longer than P") {
    for (const auto& [ranks, microbatches, chunks] :
         std::vector<std::array<int, 3>>{{2, 4, 1}, {2, 4, 3}, {3, 5, 3}, {4, 6, 2}, {4, 2, 2}}) {
      Spec spec = SpecOf("interleaved-1f1b", ranks, microbatches, 1);
      spec.chunks = chunks;
      CAPTURES(ranks, microbatches, chunks);
      const Plan plan = Compile(spec);
      CHECK(plan.stages == ranks * chunks);
      CHECK(Compare(plan) == "");
    }
  }

  TEST_CASE("equivalence: weight gradients may wait to the very end in any order") {
    // One stage is turned round, while the other's stays: the sums round differently, in some
    // element of some stage, unless the run without a pipeline follows.
    const Plan ascending = Compile(SpecOf("zb-1p", 2, 8, 1));
    CHECK(Compare(ascending, 1) == "");
    Plan plan = ascending;
    for (const bool turned : {false, true}) {
      Program& program = plan.programs[1];
      program.clear();
      for (const Instruction& i : ascending.programs[1]) {
        if (i.op == Op::STEP || i.op == Op::W) continue;
        program.push_back(i.op == Op::BW ? CellOp(Op::B, i.stage, i.microbatch) : i);
      }
      for (int m = 0; m < 8; ++m) program.push_back(CellOp(Op::W, 1, turned ? 7 - m : m));
      program.push_back(StageOp(Op::STEP, 1));
      CHECK(FindingsText(plan) == "");
      CHECK(Compare(plan) == "");
    }
    const std::string difference =
        TrainBesideReference(plan, SmallModel(plan.stages), {.steps = 1, .like = &ascending})
            .difference;
    CHECK(difference.starts_with("step 1: gradient of stage 1, block \""));
    CHECK(Contains(difference, "on replica 0 rank 1 is "));
    CHECK(Contains(difference, ", without a pipeline "));
  }

  TEST_CASE("equivalence: copies of a stage add in orders of their own") {
    // The two ranks of a DualPipe hold both stages; the second takes its micro-batches last first.
    const std::string first =
        "F s0 m0\nF s1 m0\nF s0 m1\nF s1 m1\nB s1 m0\nB s0 m0\n"
        "B s1 m1\nB s0 m1\nW s1 m0\nW s0 m0\nW s1 m1\nW s0 m1\n";
    const std::string second =
        "F s0 m2\nF s1 m2\nF s0 m3\nF s1 m3\nB s1 m2\nB s0 m2\n"
        "B s1 m3\nB s0 m3\nW s1 m3\nW s0 m2\nW s1 m2\nW s0 m3\n";
    const std::string end = "REDUCE s0\nREDUCE s1\nSTEP s0\nSTEP s1\n";
    const Plan plan = PlanFromText("level comm\nroute 0 0 : 0 1\nroute 1 1 : 2 3\nrank\n" + first +
                                   end + "rank\n" + second + end);
    CHECK(FindingsText(plan) == "");
    CHECK(Compare(plan) == "");
  }

  TEST_CASE("equivalence: components and buffers keep the order of the plan they come from") {
    const Model model = GroupModel(1.0f);
    for (const Level level : {Level::kComponent, Level::kBuffer}) {
      CAPTURE(Name(level));
      const Plan ascending = PlanFor(model, "gpipe", 2, 4, 2, level, 3);
      // The same schedule with all micro-batches numbered the other way round.
      Plan plan = ascending;
      const auto turn = [&](int32_t* m) {
        if (*m >= 0) *m = plan.microbatches - 1 - *m;
      };
      for (Program& program : plan.programs) {
        for (Instruction& i : program) turn(&i.microbatch);
      }
      for (std::vector<Slot>& slots : plan.slots) {
        for (Slot& slot : slots) turn(&slot.microbatch);
      }
      CHECK(FindingsText(plan) == "");
      CHECK(Compare(plan, model) == "");
    }
  }

  TEST_CASE("equivalence: stages with unlike numbers of layers") {
    int unlike = 0;
    for (const Schedule* schedule : Schedules()) {
      if (!schedule->reject(MakeSpec(schedule->name, 3, 6, UniformCosts(1, 1, 1))).empty())
        continue;
      for (const Level level : {Level::kComponent, Level::kBuffer}) {
        CAPTURES(schedule->name, Name(level));
        const Model model = GroupModel();
        const Plan plan = UnlikePlanFor(model, schedule->name, 3, 6, level, 11);
        CHECK(TrainBesideReference(plan, model, {.steps = 2}).difference == "");
        unlike += plan.stage_layers.empty() ? 0 : 1;
      }
    }
    CHECK(unlike > 10);
  }

  TEST_CASE("equivalence: B leaves weight gradients alone W makes them") {
    const Plan plan = PlanFromText("level comm\nrank\nF s0 m0\nB s0 m0\nW s0 m0\nSTEP s0");
    const Model model = SmallModel(1);
    const Dataset dataset = SmallDataset();
    ThreadNetwork network(1, 1, 1, {});
    HostBackend backend(plan, model, dataset, 7, {}, network.At({}));
    backend.BeginStep(1);
    const auto largest = [&] {
      float most = 0;
      for (const float g : backend.Gradients(0)) most = std::max(most, std::abs(g));
      return most;
    };
    backend.Compute(CellOp(Op::F, 0, 0));
    backend.Compute(CellOp(Op::B, 0, 0));
    CHECK(largest() == 0.0f);
    backend.Compute(CellOp(Op::W, 0, 0));
    CHECK(largest() > 0.0f);
  }
}

}  // namespace
}  // namespace contraflow::equivalence_test
