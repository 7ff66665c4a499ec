// Training with a pipeline equals training without one, bit for bit: every loss, every gradient and
// every updated weight on every rank that holds a copy, for every schedule.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "compiler/verify/verify.h"
#include "runtime/core/check.h"
#include "runtime/launch/threaded_run.h"
#include "schedules/registry.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::equivalence_test {
namespace {

/// Uneven costs, so that the order of the instructions is not a special case of equal ones.
Spec SpecOf(std::string_view schedule, int ranks, int microbatches, int data_parallel) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, UniformCosts(3, 4, 2, 1));
  spec.data_parallel = data_parallel;
  return spec;
}

/// "" or the first difference in `steps` steps of the plan from training as `like` without a
/// pipeline.
std::string Compare(const Plan& plan, const Plan& like, const Model& model, int steps,
                    bool strict) {
  const Dataset dataset = SmallDataset();
  ThreadedRun run(plan, model, dataset, 7, {.strict = strict});
  ReferenceRun reference(like, model, dataset, 7);
  for (int step = 1; step <= steps; ++step) {
    const StepResult result = run.Step(step);
    const Comparison comparison = CompareStep(plan, step, result, run, reference);
    if (!comparison.difference.empty()) return comparison.difference;
    CHECK(comparison.values > 1000);
  }
  return "";
}

std::string Compare(const Plan& plan, const Plan& like, int steps, bool strict) {
  return Compare(plan, like, SmallModel(plan.stages), steps, strict);
}

std::string Compare(const Plan& plan, int steps, bool strict) {
  return Compare(plan, plan, steps, strict);
}

/// Runs every schedule that takes this size; returns how many did.
int CompareSchedules(int ranks, int microbatches, int data_parallel) {
  int count = 0;
  for (const Schedule* schedule : Schedules()) {
    const Spec spec = SpecOf(schedule->name, ranks, microbatches, data_parallel);
    if (!schedule->reject(spec).empty()) continue;
    const Plan plan = Compile(spec);
    for (const bool strict : {false, true}) {
      CAPTURE(spec.schedule);
      CAPTURE(ranks);
      CAPTURE(microbatches);
      CAPTURE(data_parallel);
      CAPTURE(strict);
      CHECK(Compare(plan, 2, strict) == "");
    }
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
    CHECK(CompareSchedules(2, 5, 1) >= 3);
  }
  TEST_CASE("equivalence: four ranks") {
    CHECK(CompareSchedules(4, 8, 1) >= 5);
    CHECK(CompareSchedules(4, 10, 2) >= 5);
  }
  TEST_CASE("equivalence: eight ranks") { CHECK(CompareSchedules(8, 16, 1) >= 5); }

  TEST_CASE("equivalence: interleaved with other numbers of chunks and rounds longer than P") {
    for (const auto& [ranks, microbatches, chunks] :
         std::vector<std::array<int, 3>>{{2, 4, 1}, {2, 4, 3}, {3, 5, 3}, {4, 6, 2}, {4, 2, 2}}) {
      Spec spec = SpecOf("interleaved-1f1b", ranks, microbatches, 1);
      spec.chunks = chunks;
      CAPTURE(ranks);
      CAPTURE(microbatches);
      CAPTURE(chunks);
      const Plan plan = Compile(spec);
      CHECK(plan.stages == ranks * chunks);
      CHECK(Compare(plan, 2, false) == "");
      CHECK(Compare(plan, 2, true) == "");
    }
  }

  TEST_CASE("equivalence: weight gradients may wait to the very end") {
    // ZB-1P's ranks by hand, with every W behind the last B.
    const Plan plan = PlanFromText(R"(
        rank
         F s0 m0
         SEND_F s0 m0 to=1
         F s0 m1
         SEND_F s0 m1 to=1
         F s0 m2
         SEND_F s0 m2 to=1
         RECV_B s0 m0 from=1
         B s0 m0
         RECV_B s0 m1 from=1
         B s0 m1
         RECV_B s0 m2 from=1
         B s0 m2
         W s0 m0
         W s0 m1
         W s0 m2
         STEP s0
        rank
         RECV_F s1 m0 from=0
         F s1 m0
         RECV_F s1 m1 from=0
         F s1 m1
         RECV_F s1 m2 from=0
         F s1 m2
         B s1 m0
         SEND_B s1 m0 to=0
         B s1 m1
         SEND_B s1 m1 to=0
         B s1 m2
         SEND_B s1 m2 to=0
         W s1 m0
         W s1 m1
         W s1 m2
         STEP s1)");
    CHECK(Verify(plan).empty());
    CHECK(Compare(plan, 3, false) == "");
    CHECK(Compare(plan, 3, true) == "");
  }

  TEST_CASE("equivalence: the order of weight gradients is the plan's") {
    // Of one stage turned round, while the other's stays: the sums round differently, in some
    // element of some stage, unless the run without a pipeline follows.
    const Spec spec = SpecOf("zb-1p", 2, 8, 1);
    Plan plan = Compile(spec);
    CHECK(Compare(plan, 1, false) == "");
    const Plan ascending = plan;
    Program& program = plan.programs[1];
    // All W to the end, last micro-batch first.
    Program turned;
    for (const Instruction& i : program) {
      if (i.op == Op::STEP || i.op == Op::W) continue;
      turned.push_back(i.op == Op::BW ? CellOp(Op::B, i.stage, i.microbatch) : i);
    }
    for (int m = spec.microbatches; m-- > 0;) turned.push_back(CellOp(Op::W, 1, m));
    turned.push_back(StageOp(Op::STEP, 1));
    program = turned;
    CHECK(FindingsText(plan) == "");
    CHECK(Compare(plan, 2, false) == "");
    CHECK(Compare(plan, 2, true) == "");
    const std::string difference = Compare(plan, ascending, 1, false);
    CHECK(difference.starts_with("step 1: gradient of stage 1, block \""));
    CHECK(difference.find("on replica 0 rank 1 is ") != std::string::npos);
    CHECK(difference.find(", without a pipeline ") != std::string::npos);
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
    CHECK(Compare(plan, 2, false) == "");
    CHECK(Compare(plan, 2, true) == "");
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
      CHECK(Compare(plan, plan, model, 2, true) == "");
    }
  }

  TEST_CASE("equivalence: a wrong loss gradient or weight is named") {
    const Plan plan = Compile(SpecOf("1f1b", 2, 2, 1));
    const Model model = SmallModel(plan.stages);
    const Dataset dataset = SmallDataset();
    const auto difference = [&](const auto& spoil) {
      ThreadedRun run(plan, model, dataset, 7, {});
      ReferenceRun reference(plan, model, dataset, 7);
      StepResult result = run.Step(1);
      spoil(result, run);
      return CompareStep(plan, 1, result, run, reference).difference;
    };
    CHECK(difference([](StepResult&, ThreadedRun&) {}) == "");
    CHECK(
        difference([](StepResult& result, ThreadedRun&) { result.losses[1] = 1.5f; })
            .starts_with("step 1: loss of replica 0, micro-batch 1 is 1.5 (0x3fc00000), without a "
                         "pipeline "));
    const auto spoiled_gradient = difference([](StepResult&, ThreadedRun& run) {
      run.At({0, 0, 1}).StageAt(1).gradients()[3] = -0.25f;
    });
    CHECK(spoiled_gradient.starts_with("step 1: gradient of stage 1, block \""));
    CHECK(spoiled_gradient.find("index 3, on replica 0 rank 1 is -0.25 (0xbe800000), without") !=
          std::string::npos);
    CHECK(difference([](StepResult&, ThreadedRun& run) {
            float& weight = run.At({0, 0, 0}).StageAt(0).parameters()[0];
            weight = -weight;
          }).starts_with("step 1: updated weight of stage 0, block \""));
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
    backend.EndStep();
  }
}

}  // namespace
}  // namespace contraflow::equivalence_test
