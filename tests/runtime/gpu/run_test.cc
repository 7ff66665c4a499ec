#include "runtime/gpu/run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/check.h"
#include "runtime/model/gpu_views.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/test_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::run_test {
namespace {

constexpr uint64_t kSeed = 1;
constexpr GpuRunOptions kGraph = {{.graph = true}};
constexpr GpuRunOptions kEager = {{.graph = false, .stamps = false, .run_ahead = 4}};

/// The smallest model for a GPU; every token visits `top_k` of `experts`.
Model SmallModel(int top_k, int experts, float capacity_factor = 0) {
  return {.name = "small",
          .width = 16,
          .heads = 2,
          .experts = experts,
          .top_k = top_k,
          .expert_width = 16,
          .capacity_factor = capacity_factor,
          .sequence = 8,
          .batch = 2};
}

/// With all that the optimizer can be told: a norm that is soon reached, a rate that falls.
Model Clipped(Model model) {
  model.clip = 0.25f;
  model.warmup_steps = 1;
  model.decay_steps = 4;
  model.minimum_learning_rate = 1e-4f;
  return model;
}

/// Stands still after this many looks at whether it is done, but for the stream that watches it,
/// which has its work done at once.
class StillGpu : public EmulatedGpu {
 public:
  explicit StillGpu(int looks) : looks_(looks) {}

  gpu::Stream NewStream(int partition, Priority priority, const std::string& name) override {
    if (name == "hang watch") return {};
    return EmulatedGpu::NewStream(partition, priority, name);
  }
  void Record(GpuEvent* event, gpu::Stream stream) override {
    if (stream.handle == nullptr) watching_ = event;
    EmulatedGpu::Record(event, stream);
  }
  bool Done(GpuEvent* event) override {
    if (event == watching_) return true;
    return looks_-- > 0 && EmulatedGpu::Done(event);
  }

 private:
  int looks_;
  GpuEvent* watching_ = nullptr;
};

struct Shape {
  const char* schedule;
  int ranks, microbatches;
  int layers = 1;  ///< of each stage
  int members = 1, replicas = 1;
};

/// Plan of level buffer, for a GPU.
Plan PlanOf(const Shape& shape, const Model& model) {
  CostModel costs;
  costs.moe = MoeCost{shape.layers, {9}, {4}, {7}, {5}, {5}, {7}, {4}, {8}, {6}, {9}};
  DeriveChunkCosts(&costs, Overlap::kAll);
  Spec spec = MakeSpec(shape.schedule, shape.ranks, shape.microbatches, costs);
  spec.data_parallel = shape.replicas;
  Plan plan = GeneratePlan(spec);
  plan.expert_parallel = shape.members;
  costs.memory = GpuFootprintOf(model, plan.stages, shape.layers, shape.members);
  return Lower(std::move(plan), costs, {.target = Level::kBuffer});
}

std::vector<uint32_t> BitsOf(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

/// All that a training gives, bit for bit: losses of every step, gradients and weights of every
/// device's stages after the last.
using Outcome = std::map<std::string, std::vector<uint32_t>>;

Outcome OutcomeOf(const Plan& plan, Run* run) {
  Outcome outcome;
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (const Device& device : run->devices()) {
    for (int s = 0; s < plan.stages; ++s) {
      const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
      if (std::ranges::find(ranks, device.rank) == ranks.end()) continue;
      Stage& stage = run->At(device).StageAt(s);
      const std::string name = std::to_string(device.replica) + "." +
                               std::to_string(device.member) + "." + std::to_string(device.rank) +
                               " s" + std::to_string(s);
      outcome["gradients " + name] = BitsOf(stage.gradients());
      outcome["weights " + name] = BitsOf(stage.parameters());
    }
  }
  return outcome;
}

Outcome Train(const Plan& plan, const Model& model, const EmulatedGpuOptions& gpu_options,
              const GpuRunOptions& options, int steps) {
  const Dataset dataset = SmallDataset();
  EmulatedGpu gpu(gpu_options);
  GpuRun run(plan, model, dataset, kSeed, gpu, options);
  Outcome losses;
  for (int step = 1; step <= steps; ++step) {
    losses["losses " + std::to_string(step)] = BitsOf(run.Step(step).losses);
  }
  Outcome outcome = OutcomeOf(plan, &run);
  outcome.merge(losses);
  return outcome;
}

/// Trains on virtual ranks, and compares every step bit for bit with the same GPU's run without a
/// pipeline, and with the host's where every token visits all experts: elsewhere rounding decides
/// now and then which expert a token visits.
void CheckAgainstReferences(const Shape& shape, const Model& model, const GpuRunOptions& options,
                            uint64_t seed, int steps) {
  const Dataset dataset = SmallDataset();
  const Plan plan = PlanOf(shape, model);
  EmulatedGpu gpu(EmulatedGpuOptions{.seed = seed});
  GpuRun run(plan, model, dataset, kSeed, gpu, options);
  GpuSerialRun reference(plan, model, dataset, kSeed, gpu, run.budget());
  ReferenceRun host(plan, model, dataset, kSeed);
  ReferenceRun* const comparable = model.top_k == model.experts ? &host : nullptr;
  for (int step = 1; step <= steps; ++step) {
    const StepResult result = run.Step(step);
    // Blocks are so small here that the rounding of a few values makes up 2 % of one of them.
    const GpuComparison comparison =
        CompareGpuStep(plan, step, result, run, reference, comparable, 4e-2);
    CHECK(comparison.difference == "");
    CHECK(comparison.values > 1000);
    CHECK(result.gradient_norm == reference.norm());
    CHECK((result.gradient_norm > static_cast<double>(model.clip)) == (model.clip > 0));
    if (comparable != nullptr) CHECK(comparison.gradient < 1e-2);
    CHECK(result.duration > 0);
    for (size_t rank = 0; rank < result.timeline.ranks.size(); ++rank) {
      const size_t size = options.stamps ? plan.programs[rank].size() : 0;
      CHECK(result.timeline.ranks[rank].size() == size);
    }
  }
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU run: 1f1b equals the runs without a pipeline") {
    CheckAgainstReferences({"1f1b", 2, 2, 2}, SmallModel(1, 3), kGraph, 1, kSanitized ? 1 : 2);
  }
  TEST_CASE("GPU run: zb-1p of expert groups with a capacity equals the runs without a pipeline") {
    CheckAgainstReferences({"zb-1p", 2, 2, 1, 2}, Clipped(SmallModel(2, 4, 1.0f)), kEager, 2, 1);
  }
  TEST_CASE("GPU run: dualpipe of expert groups equals the runs without a pipeline") {
    CheckAgainstReferences({"dualpipe", 2, 4, 1, 2}, Clipped(SmallModel(1, 2)), kGraph, 3, 1);
  }
  TEST_CASE("GPU run: four ranks and two replicas equal the runs without a pipeline") {
    if (!kSanitized) CheckAgainstReferences({"1f1b", 4, 4}, SmallModel(1, 2), kGraph, 4, 1);
    CheckAgainstReferences({"1f1b", 1, 2, 1, 1, 2}, Clipped(SmallModel(2, 2, 1.0f)), kEager, 5, 1);
  }
  TEST_CASE("GPU run: it is near the host where no token chooses") {
    CheckAgainstReferences({"zb-1p", 2, 2}, Clipped(SmallModel(2, 2)), kGraph, 6,
                           kSanitized ? 1 : 2);
    if (!kSanitized) CheckAgainstReferences({"dualpipe", 2, 4}, SmallModel(2, 2), kEager, 7, 1);
  }

  TEST_CASE("GPU run: the same bits in any order of the streams with a graph and without") {
    const Model model = SmallModel(1, 2);
    const Plan group = PlanOf({"zb-1p", 2, 2, 1, 2}, model);
    const int steps = kSanitized ? 1 : 2;
    const Outcome first = Train(group, model, {.turn = Turn::kFirst}, kEager, steps);
    // Gradients and weights of four copies of stages, and the losses of each step.
    CHECK(first.size() == 2 * 4 + static_cast<size_t>(steps));
    CHECK(Train(group, model, {.turn = Turn::kLast}, kGraph, steps) == first);
    if (kSanitized) return;
    CHECK(Train(group, model, {.seed = 2}, kEager, steps) == first);
    const Plan routes = PlanOf({"dualpipe", 2, 4}, model);
    const Outcome second = Train(routes, model, {.turn = Turn::kLast}, kEager, 1);
    CHECK(Train(routes, model, {.turn = Turn::kFirst}, kGraph, 1) == second);
    CHECK(Train(routes, model, {.seed = 3}, kGraph, 1) == second);
  }

  TEST_CASE("GPU run: schedules that place stages alike give the same bits") {
    const Model model = SmallModel(1, 2, 1.5f);
    CHECK(Train(PlanOf({"1f1b", 2, 3}, model), model, {.seed = 3}, kGraph, 1) ==
          Train(PlanOf({"zb-1p", 2, 3}, model), model, {.seed = 4}, kEager, 1));
  }

  TEST_CASE("GPU run: what is put into stages is trained on") {
    const Model model = SmallModel(1, 2);
    const Dataset dataset = SmallDataset();
    const Plan plan = PlanOf({"1f1b", 2, 2}, model);
    EmulatedGpu gpu, other_gpu;
    GpuRun run(plan, model, dataset, kSeed, gpu), other(plan, model, dataset, kSeed, other_gpu);
    run.Step(1);
    for (const Device& device : run.devices()) {
      Stage& from = run.At(device).StageAt(device.rank);
      Stage& to = other.At(device).StageAt(device.rank);
      CHECK(BitsOf(from.parameters()) != BitsOf(to.parameters()));
      std::ranges::copy(from.parameters(), to.parameters().begin());
      std::ranges::copy(from.first_moments(), to.first_moments().begin());
      std::ranges::copy(from.second_moments(), to.second_moments().begin());
      other.At(device).Put(device.rank);
    }
    CHECK(BitsOf(run.Step(2).losses) == BitsOf(other.Step(2).losses));
    CHECK(OutcomeOf(plan, &run) == OutcomeOf(plan, &other));
    for (const Device& device : run.devices()) {
      const auto& slots = plan.slots[static_cast<size_t>(device.rank)];
      CHECK(run.At(device).arena_bytes() == ArenaBytes(slots));
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("GPU run: a layer takes few launches, and stamps are those of its instructions") {
    const Model model = SmallModel(2, 4);
    const Dataset dataset = SmallDataset();
    // Launches of one step of one micro-batch, with this many layers in the only stage.
    const auto launches = [&](int layers, int stamps) {
      Plan plan;
      for (uint64_t seed = 1; plan.layers != layers; ++seed) {
        plan = GpuPlanFor(model, "1f1b", 1, 1, 1, seed);
      }
      std::vector<GpuCall> log;
      EmulatedGpu gpu(EmulatedGpuOptions{.log = &log});
      GpuRun run(plan, model, dataset, kSeed, gpu, {{.graph = false, .stamps = stamps}});
      log.clear();
      run.Step(1);
      return std::ranges::count(log, GpuCall::Kind::kKernel, &GpuCall::kind);
    };
    // Forward, input gradients and weight gradients of a layer and micro-batch.
    CHECK(launches(2, 0) - launches(1, 0) == 39);
    CHECK(launches(2, 1) - launches(1, 1) == 39 + 20);
  }

  TEST_CASE("GPU run: a GPU that stands still is given up with what it is at") {
    const Model model = SmallModel(1, 2);
    const Dataset dataset = SmallDataset();
    const Plan plan = PlanOf({"1f1b", 2, 2}, model);
    // The first instruction that has begun and not ended, or the whole error.
    const auto hang = [&](int looks, GpuRunOptions options, int steps) {
      StillGpu gpu(looks);
      GpuRun run(plan, model, dataset, kSeed, gpu, options);
      return Failure<GpuHang>([&] {
        for (int step = 1; step <= steps; ++step) run.Step(step);
      });
    };
    GpuRunOptions options = kGraph;
    options.timeout = std::chrono::milliseconds(300);
    const std::string head = "the GPU has made no progress for 0.3 s in step 1; ";
    CHECK(hang(0, options, 1) == head + "no instruction has begun that has not ended");
    for (const bool graph : {false, true}) {
      options.graph = graph;
      const std::string error = hang(graph ? 60 : 40, options, 1);
      CAPTURE(error);
      CHECK(error.find(head + "begun and not ended: rank ") == 0);
    }
    options.stamps = false;
    CHECK(hang(50, options, 1) == head + "what it is at is not known without stamps");
    options.timeout = std::chrono::minutes(1);
    CHECK(hang(1 << 30, options, 1) == "accepted");
    options.stamps = true;
    CHECK(hang(1 << 30, options, 2) == "accepted");
  }

  TEST_CASE("GPU run: plans that do not suit are refused with the remedy") {
    const Model model = SmallModel(1, 2);
    const Dataset dataset = SmallDataset();
    const auto error_of = [&](const Plan& plan) {
      EmulatedGpu gpu;
      return Failure([&] { GpuRun(plan, model, dataset, kSeed, gpu); });
    };
    const auto plan_of = [&](Level level) {
      const Plan plan = PlanOf({"1f1b", 2, 2}, model);
      CostModel costs = *plan.costs;
      costs.memory = FootprintOf(model, plan.stages, plan.layers, 1);
      return Lower(GeneratePlan(MakeSpec("1f1b", 2, 2, costs)), costs, {.target = level});
    };
    CHECK(error_of(plan_of(Level::kComponent)) ==
          "a GPU runs plans of level buffer, this one is of level component; compile it with "
          "`level` buffer `model` " +
              model.name + " `device` cuda");
    // Its slots are of the sizes that the host's runtime stores values in.
    CHECK(Contains(error_of(plan_of(Level::kBuffer)), "`device` cuda"));
    CHECK(error_of(PlanOf({"1f1b", 17, 17}, model)) ==
          "a GPU of 132 SMs can stand for at most 16 devices (partitions of at least 8 SMs), not "
          "for 17; compile the plan for fewer ranks, or run it on more GPUs");
  }
}

}  // namespace
}  // namespace contraflow::run_test
