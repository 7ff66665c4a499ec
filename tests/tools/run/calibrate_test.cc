// From a measured run to the next plan, as a user goes about it.

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/layer_cost.h"
#include "tests/runtime/launch/job.h"

namespace contraflow::calibrate_test {
namespace {

std::string Ended(LaunchedJob* job) {
  REQUIRE(job->Wait(kPatience));
  CAPTURE(job->Story());
  CHECK(job->ending(0).code == 0);
  return job->Out(0);
}

TEST_SUITE("jobs") {
  TEST_CASE("costs by layer that were measured make plans for any number of stages") {
    const TestFolder folder;
    const std::string first =
        CompilePlan(folder, "first", "--schedule 1f1b --ranks 2 --microbatches 4");
    const std::string file = folder.File("measured.json");
    LaunchedJob measured(Alone({first, "--model", "tiny", "--steps", "2", "--calibrate", file}));
    Ended(&measured);
    const CostModel costs = ReadCostFile(file);
    CHECK(costs.LayerCount() == 10);
    CHECK(costs.source.starts_with("measured: 1f1b, 2 ranks, 4 micro-batches, model tiny"));
    for (const LayerCost& layer : costs.layers) CHECK(*layer.parameter_bytes > 0);

    const std::string next = CompilePlan(
        folder, "next",
        "--schedule dualpipe --ranks 2 --microbatches 4 --partition 3,7 --costs " + file);
    LaunchedJob checked(Alone({next, "--model", "tiny", "--steps", "1", "--check"}));
    const std::string out = Ended(&checked);
    CHECK(CountOf(out, "bit for bit") == 1);
    CHECK(CountOf(out, "not this model's") == 0);
    // Its costs are those of the partition; of other layers they are an error.
    RunTool(folder, "simulate " + next + " --costs " + file);

    // A plan for a model of other layers trains all the same, and says so.
    const std::string model = folder.File("model.json");
    WriteText(model, R"({"layers": 5, "width": 16, "heads": 2, "experts": 4, "expert_width": 16,
                         "sequence": 8, "batch": 2})");
    LaunchedJob other(Alone({next, "--model", model, "--steps", "1", "--check"}));
    CHECK(CountOf(Ended(&other),
                  "the plan is for 3,7 layers, which are not this model's: its stages share the "
                  "layers evenly\n") == 1);
  }

  TEST_CASE("a stage that would have the head alone is refused") {
    const TestFolder folder;
    const std::string first =
        CompilePlan(folder, "first", "--schedule gpipe --ranks 1 --microbatches 1");
    const std::string file = folder.File("measured.json");
    LaunchedJob measured(Alone({first, "--model", "tiny", "--steps", "1", "--calibrate", file}));
    Ended(&measured);
    const std::string next =
        CompilePlan(folder, "next",
                    "--schedule 1f1b --ranks 2 --microbatches 2 --partition 9,1 --costs " + file);
    LaunchedJob refused(Alone({next, "--model", "tiny", "--steps", "1"}));
    REQUIRE(refused.Wait(kPatience));
    CHECK(refused.ending(0).code == 1);
    CHECK(refused.Err(0) ==
          "contraflow-run: error: " + next +
              ": stage 1 of the plan has the head alone, and contraflow-run computes it with a "
              "layer of the model; compile it with --partition 8,2\n");
  }

  TEST_CASE("processes of a job measure together") {
    const TestFolder folder;
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule zb-1p --ranks 2 --microbatches 2");
    const std::string file = folder.File("measured.json");
    JobSpec spec;
    spec.processes = 2;
    spec.words = {plan, "--model", "tiny", "--steps", "3", "--calibrate", file};
    spec.environment = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(FreePort())}};
    LaunchedJob job(spec);
    Ended(&job);
    const std::string text = ReadText(file);
    // Embedding and head are in different processes, and a block's times from both: eight layers,
    // two micro-batches, two steps.
    CHECK(CountOf(text, "// embedding  F") == 1);
    CHECK(CountOf(text, "// head       F") == 1);
    CHECK(CountOf(text, "// block      MLP_F          32") == 1);
  }
}

}  // namespace
}  // namespace contraflow::calibrate_test
