#include "tools/contraflow-run/layer_times.h"

#include <doctest/doctest.h>

#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "runtime/host/reference_run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"
#include "tools/contraflow-run/calibration.h"
#include "tools/contraflow-run/job.h"

namespace contraflow::layer_times_test {
namespace {

Model FourLayers() {
  Model model = SmallModel(1);
  model.layers = 4;
  return model;
}

/// Parts as if every part of the model took what is given here, on two ranks with two layers each.
std::vector<RankParts> Parts(const Model& model) {
  const std::map<Op, Time> layer = {{Op::ATTN_F, 10'000},    {Op::DISPATCH_F, 1'000},
                                    {Op::MLP_F, 20'000},     {Op::COMBINE_F, 2'000},
                                    {Op::COMBINE_B, 3'000},  {Op::MLP_B, 30'000},
                                    {Op::DISPATCH_B, 4'000}, {Op::ATTN_B, 40'000},
                                    {Op::MLP_W, 7'000},      {Op::ATTN_W, 5'000}};
  std::vector<RankParts> parts = {{0, {}}, {1, {}}};
  for (int l = 0; l < model.layers; ++l) {
    for (const auto& [op, time] : layer) {
      // The middle half is what counts.
      parts[l < 2 ? 0 : 1].times[{l, op}] = {time, time, 9 * time, time, time, time, time, 0};
    }
  }
  parts[0].times[{ModelPart::kEmbedding, Op::F}] = {100};
  parts[0].times[{ModelPart::kEmbedding, Op::W}] = {300};
  parts[1].times[{model.layers, Op::F}] = {6'000};
  parts[1].times[{model.layers, Op::B}] = {8'000};
  parts[1].times[{model.layers, Op::W}] = {9'000};
  return parts;
}

/// A plan of two stages whose chunks take what the parts above add up to.
Plan PlanOfParts() {
  CostModel costs = UniformCosts(66'100, 154'000, 24'300, 50'000);
  costs.unit = Unit::kMicroseconds;
  costs.stages.push_back(
      {.f = 72'000, .b = 162'000, .w = 33'000, .bw = 195'000, .fb = 267'000, .step = 20'000});
  costs.stages[0].step = 20'000;
  return Compile(MakeSpec("zb-1p", 2, 4, costs));
}

CostModel Measured(const Model& model) {
  const Plan plan = PlanOfParts();
  Calibration calibration(plan);
  calibration.Add(Simulate(plan, *plan.costs).timeline);
  return CostsByLayer(plan, model, Parts(model), calibration);
}

TEST_SUITE("unit") {
  TEST_CASE("layer times: the file has the layers of the model in their order") {
    const Model model = FourLayers();
    const CostModel costs = Measured(model);
    const std::string text = WriteLayerTimes(costs, model, Parts(model), "a test");
    CHECK(Contains(text,
                   "// block      ATTN_F         32              10      10              10\n"));
    const CostModel read = ReadCosts(text, "measured.json");
    CHECK(read.source == "measured: a test");
    CHECK(read.layers == costs.layers);
    CHECK(read.comm == costs.comm);
    REQUIRE(read.layers.size() == 3);
    CHECK(read.layers[0].name == "embedding");
    CHECK(read.layers[0].cost.f == 100);
    CHECK(read.layers[0].cost.b == 0);
    CHECK(read.layers[0].cost.w == 300);
    CHECK(read.layers[1].name == "block");
    CHECK(read.layers[1].repeat == 4);
    REQUIRE(read.layers[1].moe);
    // Exchanges are counted with the next compute.
    CHECK(read.layers[1].moe->mlp_f == std::vector<Time>{23'000});
    CHECK(read.layers[1].moe->dispatch_f == std::vector<Time>{0});
    CHECK(read.layers[1].moe->mlp_b == std::vector<Time>{33'000});
    CHECK(read.layers[1].moe->attn_b == std::vector<Time>{44'000});
    CHECK(read.layers[2].name == "head");
    CHECK(read.layers[2].cost.b == 8'000);
  }

  TEST_CASE("layer times: what the stages were made of makes the stages again") {
    const Model model = FourLayers();
    Plan plan = PlanOfParts();
    Spec spec = MakeSpec("zb-1p", 2, 4, Measured(model));
    spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = {3, 3}};
    const Plan again = Compile(spec);
    for (size_t s = 0; s < 2; ++s) {
      CHECK(again.costs->stages[s].f == plan.costs->stages[s].f);
      CHECK(again.costs->stages[s].b == plan.costs->stages[s].b);
      CHECK(again.costs->stages[s].w == plan.costs->stages[s].w);
      CHECK(again.costs->stages[s].bw == plan.costs->stages[s].b + plan.costs->stages[s].w);
      // Each stage has half of the layers; embedding and head have as many parameters but a norm.
      CHECK(again.costs->stages[s].step == doctest::Approx(20'000).epsilon(0.01));
      CHECK(again.costs->memory->parameter_bytes[s] ==
            FootprintOf(model, 2, 0, 1).parameter_bytes[s]);
    }
    CHECK(
        Simulate(again, *again.costs).makespan ==
        doctest::Approx(static_cast<double>(Simulate(plan, *plan.costs).makespan)).epsilon(0.001));
  }

  TEST_CASE("layer times: bytes are those of the values that the host keeps") {
    const Model model = FourLayers();
    const CostModel costs = Measured(model);
    const MemoryCost footprint = FootprintOf(model, 4, 0, 1);
    CHECK(costs.layers[1].activation_bytes == footprint.activation_bytes);
    // B's gradients for the weights wait for W as well.
    CHECK(costs.layers[1].w_stash_bytes > footprint.w_stash_bytes);
    CHECK(costs.layers[1].w_stash_bytes <= footprint.activation_bytes);
    CHECK(costs.layers[1].output_bytes == footprint.values[static_cast<size_t>(Value::input)]);
    CHECK(costs.layers[2].activation_bytes > footprint.values[static_cast<size_t>(Value::head)]);
    CHECK(*costs.layers[1].gradient_bytes == *costs.layers[1].parameter_bytes);
    CHECK(*costs.layers[1].optimizer_bytes == 2 * *costs.layers[1].parameter_bytes);
  }

  TEST_CASE("layer times: the parts of a run add up to its chunks") {
    Model model = FourLayers();
    model.partition = {3, 1};
    const Plan plan = Compile(MakeSpec("1f1b", 2, 4, UniformCosts(1'000, 1'000, 1'000)));
    const Dataset dataset = SmallDataset();
    ThreadedRun run(plan, model, dataset, 7, {});
    for (const Device& device : run.devices()) {
      REQUIRE(run.At(device).MeasureParts() != nullptr);
    }
    Time chunks = 0;
    Calibration calibration(plan);
    for (int step = 1; step <= 3; ++step) {
      const Timeline timeline = run.Step(step).timeline;
      calibration.Add(timeline);
      for (size_t r = 0; r < 2; ++r) {
        for (size_t i = 0; i < plan.programs[r].size(); ++i) {
          if (WorkOf(plan.programs[r][i].op) != Work::kCompute) continue;
          chunks += timeline.ranks[r][i].end - timeline.ranks[r][i].start;
        }
      }
    }
    Job alone;
    const std::vector<RankParts> parts = GatherParts(run, alone);
    REQUIRE(parts.size() == 2);
    Time sum = 0;
    size_t count[2] = {};
    for (const RankParts& rank : parts) {
      for (const auto& [part, times] : rank.times) {
        CHECK(times.size() == 12);  // of each micro-batch in each step
        count[rank.rank] += times.size();
        for (const Time time : times) sum += time;
      }
    }
    // Ten components of each layer, and F and W of the embedding, or F, B and W of the head.
    CHECK(count[0] == 12 * (3 * 10 + 2));
    CHECK(count[1] == 12 * (1 * 10 + 3));
    CHECK(sum <= chunks);
    CHECK(sum > chunks / 2);
    const CostModel costs = CostsByLayer(plan, model, parts, calibration);
    CHECK(ReadCosts(WriteLayerTimes(costs, model, parts, "a test"), "c.json").layers ==
          costs.layers);
  }

  TEST_CASE("layer times: ranks that differ by more than a tenth have speeds") {
    const Model model = FourLayers();
    std::vector<RankParts> parts = Parts(model);
    CHECK(SpeedsOf(parts, model, 2).empty());
    const auto slower = [&](Time percent) {
      parts = Parts(model);
      for (auto& [part, times] : parts[1].times) {
        for (Time& time : times) time = time * (100 + percent) / 100;
      }
      return SpeedsOf(parts, model, 2);
    };
    CHECK(slower(9).empty());
    CHECK(slower(25) == std::vector<double>{1, 0.8});
    const std::vector<RankParts> as_fast = AtOneSpeed(parts, {1, 0.8});
    CHECK(as_fast[1].times == Parts(model)[1].times);
    CHECK(SpeedsOf({parts[1]}, model, 2).empty());  // nothing of rank 0
    CostModel costs = Measured(model);
    costs.ranks = {{.speed = 1}, {.speed = 0.8}};
    CHECK(ReadCosts(WriteLayerTimes(costs, model, as_fast, "a test"), "c.json").ranks ==
          costs.ranks);
  }

  TEST_CASE("layer times: a model of one layer on one rank") {
    Model model = SmallModel(1);
    model.layers = 1;
    const Plan plan = Compile(MakeSpec("gpipe", 1, 2, UniformCosts(1'000, 1'000, 1'000)));
    const Dataset dataset = SmallDataset();
    ThreadedRun run(plan, model, dataset, 7, {});
    run.At({}).MeasureParts();
    Calibration calibration(plan);
    calibration.Add(run.Step(1).timeline);
    Job alone;
    const CostModel costs = CostsByLayer(plan, model, GatherParts(run, alone), calibration);
    CHECK(costs.comm == CommCost{.reduce_blocks = true});
    const CostModel read =
        ReadCosts(WriteLayerTimes(costs, model, GatherParts(run, alone), "a test"), "c.json");
    CHECK(read.LayerCount() == 3);
    Spec spec = MakeSpec("1f1b", 1, 2, read);
    const Plan again = Compile(spec);
    CHECK(PartitionOf(model, again.costs->partition) == Partition{1});
    CHECK(TrainBesideReference(again, model).difference == "");
  }
}

TEST_SUITE("equivalence") {
  TEST_CASE("layer times: stages of the layers that the plan says train as one") {
    Model model = FourLayers();
    for (const Partition& partition : {Partition{5, 1}, Partition{2, 4}, Partition{3, 3}}) {
      Spec spec = MakeSpec("dualpipe", 2, 4, Measured(model));
      spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = partition};
      const Plan plan = Compile(spec);
      if (partition.back() == 1) {
        CHECK(Failure([&] { PartitionOf(model, plan.costs->partition); }) ==
              "stage 1 of the plan has the head alone, and contraflow-run computes it with a "
              "layer of the model; compile it with `partition` 4,2");
        continue;
      }
      model.partition = PartitionOf(model, plan.costs->partition);
      CHECK(model.partition == Partition{partition[0] - 1, partition[1] - 1});
      CHECK(TrainBesideReference(plan, model).difference == "");
    }
  }
}

}  // namespace
}  // namespace contraflow::layer_times_test
