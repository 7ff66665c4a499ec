// Training itself.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "compiler/files/file.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/timeline.h"
#include "runtime/launch/threaded_run.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"
#include "tests/support/test_folder.h"

namespace contraflow::run_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("text: micro-batches are drawn by seed step replica and number alone") {
    const Model model = SmallModel(1);
    const Dataset dataset = SmallDataset();
    const MicroBatch micro = DrawMicroBatch(dataset, model, 1, 2, 3, 4);
    CHECK(micro.tokens.size() == static_cast<size_t>(model.tokens()));
    CHECK(micro.tokens == DrawMicroBatch(dataset, model, 1, 2, 3, 4).tokens);
    CHECK(micro.tokens != DrawMicroBatch(dataset, model, 2, 2, 3, 4).tokens);
    CHECK(micro.tokens != DrawMicroBatch(dataset, model, 1, 3, 3, 4).tokens);
    CHECK(micro.tokens != DrawMicroBatch(dataset, model, 1, 2, 4, 4).tokens);
    CHECK(micro.tokens != DrawMicroBatch(dataset, model, 1, 2, 3, 5).tokens);
    // Sequences stand in the text, and targets are one byte further on.
    for (int b = 0; b < model.batch; ++b) {
      std::string sequence, target;
      for (int i = 0; i < model.sequence; ++i) {
        const auto at = static_cast<size_t>(b * model.sequence + i);
        sequence += static_cast<char>(micro.tokens[at]);
        target += static_cast<char>(micro.targets[at]);
      }
      CHECK(Contains(dataset.bytes, sequence + target.back()));
      CHECK(sequence.substr(1) + target.back() == target);
    }
  }

  TEST_CASE("text: the shortest that will do and what will not") {
    const TestFolder folder;
    const std::string file = folder.File("text");
    const Model model = SmallModel(1);
    WriteFile(file, "sevenby");
    const Dataset dataset = ReadDataset(file, model);
    CHECK(DrawMicroBatch(dataset, model, 1, 1, 0, 0).tokens[5] == 'b');
    WriteFile(file, "sixbyt");
    CHECK(
        Failure([&] { ReadDataset(file, model); }) ==
        file +
            ": has 6 bytes, but one sequence of 6 and the byte after it need 7; use a longer text "
            "or a model with a shorter sequence");
    CHECK(Contains(Failure([&] { ReadDataset(folder.File("missing"), model); }), "missing: "));
    CHECK(ReadDataset("", model).bytes.size() > 1000);  // Every Debian machine has this text.
  }

  TEST_CASE("run: the loss falls and follows from the seed") {
    const Plan plan = Compile(MakeSpec("dualpipe", 2, 4, UniformCosts(1, 1, 1)));
    Model model = SmallModel(plan.stages);
    model.warmup_steps = 1;
    const Dataset dataset = SmallDataset();
    const auto losses = [&](uint64_t seed, bool strict) {
      ThreadedRun run(plan, model, dataset, seed, {.strict = strict});
      std::vector<double> all;
      for (int step = 1; step <= 30; ++step) all.push_back(run.Step(step).loss);
      return all;
    };
    const std::vector<double> first = losses(1, false);
    CHECK(std::abs(first.front() - std::log(256.0)) < 0.3);
    CHECK(first.back() < first.front() - 0.5);
    CHECK(first == losses(1, true));
    CHECK(first != losses(2, false));
  }

  TEST_CASE("run: a step's timeline is measured and complete") {
    const Plan plan = Compile(MakeSpec("zb-1p", 2, 4, UniformCosts(1, 1, 1)));
    const Model model = SmallModel(plan.stages);
    const Dataset dataset = SmallDataset();
    ThreadedRun run(plan, model, dataset, 1, {});
    const StepResult result = run.Step(1);
    CHECK(result.losses.size() == 4);
    CHECK(result.timeline.measured);
    REQUIRE(result.timeline.ranks.size() == 2);
    for (size_t r = 0; r < 2; ++r) {
      REQUIRE(result.timeline.ranks[r].size() == plan.programs[r].size());
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Span span = result.timeline.ranks[r][i];
        CHECK(span.start >= 0);
        CHECK(span.end > 0);
        CHECK(span.start <= span.end);
        if (WorkOf(plan.programs[r][i].op) == Work::kCompute) CHECK(span.start < span.end);
      }
    }
    CHECK(Makespan(result.timeline) <= result.duration);
  }

  TEST_CASE("run: a micro-batch that gets no loss is an error") {
    const Plan plan =
        PlanFromText("level comm\nroute 0 : 0 1\nrank\n F s0 m0\n BW s0 m0\n STEP s0");
    const Model model = SmallModel(plan.stages);
    const Dataset dataset = SmallDataset();
    ThreadedRun run(plan, model, dataset, 1, {});
    CHECK(Failure([&] { run.Step(1); }) ==
          "micro-batch 1 never reached the last stage; verify the plan");
  }

  TEST_CASE("run: plans that one process cannot hold are refused") {
    Plan plan = Compile(MakeSpec("1f1b", 2, 4, UniformCosts(1, 1, 1)));
    const Model model = SmallModel(plan.stages);
    const Dataset dataset = SmallDataset();
    plan.data_parallel = 1000;
    CHECK(
        Failure([&] { ThreadedRun(plan, model, dataset, 1, {}); }) ==
        "the plan has 2 ranks in 1000 replica(s), which is more than 1024 threads in one process; "
        "compile it for fewer");
  }
}

}  // namespace
}  // namespace contraflow::run_test
