#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/gpu/check.h"
#include "runtime/gpu/serial_run.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/test_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"

namespace contraflow::reference_test {
namespace {

/// Few, as blocks take time in the emulator.
constexpr int kSms = 2;

/// Seeds of GpuPlanFor: stages have one layer, or two.
constexpr uint64_t kOneLayer = 1, kTwoLayers = 3;

gpu::Stream FewSms() { return {TestStream().handle, kSms}; }

std::unique_ptr<EmulatedGpu> Divided() {
  auto gpu = std::make_unique<EmulatedGpu>();
  gpu->Partition(1, 0);
  return gpu;
}

/// A plan, run and compared for some steps.
struct Trial {
  Trial(std::string_view schedule, int ranks, int microbatches, int members, int data_parallel,
        float capacity_factor = 0, uint64_t seed = kOneLayer)
      : model(SmallGpuModel(capacity_factor)),
        dataset(SmallDataset()),
        plan(GpuPlanFor(model, schedule, ranks, microbatches, members, seed, data_parallel)),
        run(plan, model, dataset, 1, TestGpu(), FewSms(), kSms),
        gpu(Divided()),
        reference(plan, model, dataset, 1, *gpu, {.compute = kSms, .link_ctas = 1}) {}

  GpuComparison Compare(int step, ReferenceRun* host, double bound) {
    const StepResult result = run.Step(step);
    return CompareGpuStep(plan, step, result, run, reference, host, bound);
  }

  const Model model;
  const Dataset dataset;
  const Plan plan;
  OneByOneRun run;
  const std::unique_ptr<EmulatedGpu> gpu;
  GpuSerialRun reference;
};

void CheckBits(Trial&& trial, int steps) {
  for (int step = 1; step <= steps; ++step) {
    ShuffleThreads(static_cast<unsigned>(step));
    const GpuComparison comparison = trial.Compare(step, nullptr, 0);
    CHECK(comparison.difference == "");
    CHECK(comparison.values > 0);
  }
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU reference: equals a pipeline bit for bit") {
    // Three, as the order of two does not show in their sum.
    CheckBits(Trial("1f1b", 2, 3, 1, 1), 1);
  }

  TEST_CASE("GPU reference: equals pipelines that share experts and replicas and take two routes") {
    CheckBits(Trial("1f1b", 1, 1, 2, 2, 1.0f), kSanitized ? 1 : 2);
    if (!kSanitized) CheckBits(Trial("dualpipe", 2, 4, 2, 1), 1);
  }

  TEST_CASE("GPU reference: is near the host's in every step from the same weights") {
    Trial trial("1f1b", 1, 1, 2, 1, 0, kTwoLayers);
    REQUIRE(trial.plan.layers == 2);
    ReferenceRun host(trial.plan, trial.model, trial.dataset, 1);
    for (int step = 1; step <= 2; ++step) {
      const GpuComparison comparison = trial.Compare(step, &host, 1e-2);
      CHECK(comparison.difference == "");
      CHECK(comparison.largest > 0);
      CHECK(comparison.where != "");
    }
  }

  TEST_CASE("host reference: tokens visit the experts they are told to") {
    const Model model = SmallGpuModel();
    const Dataset dataset = SmallDataset();
    const Plan plan = GpuPlanFor(model, "1f1b", 1, 1, 1, kOneLayer);
    ReferenceRun host(plan, model, dataset, 1);
    std::vector<int32_t> choice;
    for (int t = 0; t < model.tokens(); ++t) choice.insert(choice.end(), {3, 1});
    double strayed = 0;
    host.OnRouted([&](int, size_t, const LayerViews<float>& v) {
      strayed = std::max(strayed, ChooseAs(LayerShape(model, 1, model.experts), choice.data(), v));
    });
    host.Step(1);
    CHECK(strayed > 0);
    Stage& stage = host.stage();
    for (const ParameterBlock& block : stage.blocks()) {
      if (!Contains(block.name, "down")) continue;
      CAPTURE(block.name);
      const auto part = stage.gradients().subspan(block.offset, block.size);
      const bool zero = std::ranges::all_of(part, [](float x) { return x == 0; });
      const bool told = Contains(block.name, "expert 1") || Contains(block.name, "expert 3");
      CHECK(zero == !told);
    }
    host.OnRouted([&](int, size_t, const LayerViews<float>& v) {
      const std::vector<int32_t> own(v.expert, v.expert + choice.size());
      strayed = ChooseAs(LayerShape(model, 1, model.experts), own.data(), v);
    });
    host.Step(2);
    CHECK(strayed == 0);
  }

  TEST_CASE("GPU comparison: a bit that differs is found and so is what is too far from the host") {
    Trial trial("1f1b", 1, 1, 1, 1);
    ReferenceRun host(trial.plan, trial.model, trial.dataset, 1);
    const StepResult result = trial.run.Step(1);
    const GpuComparison far =
        CompareGpuStep(trial.plan, 1, result, trial.run, trial.reference, &host, 1e-9);
    CHECK(far.difference.find("step 1: loss of replica 0, micro-batch 0 is off the host's "
                              "by ") == 0);
    CHECK(Contains(far.difference, "e-09 was expected"));
    CHECK(far.where.find("gradient of stage ") == 0);
    CHECK(far.gradient > 0);
    CHECK(far.gradient < far.largest);

    Stage& stage = trial.run.At({0, 0, 0}).StageAt(0);
    for (const ParameterBlock& block : stage.blocks()) {
      if (block.name == "final_norm") stage.parameters()[block.offset] += 0.5f;
    }
    trial.run.At({0, 0, 0}).Put(0);
    const StepResult other = trial.run.Step(2);
    const GpuComparison near =
        CompareGpuStep(trial.plan, 2, other, trial.run, trial.reference, nullptr);
    CHECK(near.difference.find("step 2: loss of replica 0, micro-batch 0 is ") == 0);
  }

  TEST_CASE("GPU device: plans that were made for something else are refused with the remedy") {
    const Model model = SmallGpuModel();
    const Dataset dataset = SmallDataset();
    const Plan plan = GpuPlanFor(model, "1f1b", 2, 2, 1, 3);
    const auto refusal = [&](const Plan& given) {
      return Failure([&] {
        GpuDevice(CheckGpuPlan(given, model), model, dataset, 1, {0, 0, 0}, TestGpu(), FewSms(),
                  kSms);
      });
    };
    CHECK(refusal(plan) == "accepted");

    Plan other = plan;
    Slot& slot = other.slots[0].front();
    const std::string value(Name(slot.value)), bytes = std::to_string(slot.bytes);
    slot.bytes *= 2;
    CHECK(refusal(other) == "this plan was compiled for another model or device: value " + value +
                                " has " + std::to_string(slot.bytes) +
                                " bytes, model \"small-gpu\" needs " + bytes +
                                "; compile it with `model` small-gpu `device` cuda, and "
                                "with the `capacity` it is to run with");

    other = plan;
    other.slots[0].pop_back();
    CHECK(Contains(refusal(other), "has 0 bytes, model \"small-gpu\" needs "));

    other = plan;
    other.slots[0].front().microbatch = 99;
    CHECK(refusal(other) != "accepted");

    other = plan;
    other.slots[0].push_back(other.slots[0].front());
    other.slots[0].back().microbatch = 99;
    CHECK(refusal(other) == "the plan has a slot, \"" + ToString(other.slots[0].back()) +
                                "\", which no instruction of the rank touches; verify the plan");

    other = plan;
    other.level = Level::kComponent;
    CHECK(refusal(other) ==
          "a GPU runs plans of level buffer, this one is of level component; compile it with "
          "`level` buffer `model` small-gpu `device` cuda");
  }

  TEST_CASE("GPU device: arenas are those of the plan and begin aligned") {
    const Model model = SmallGpuModel();
    const Dataset dataset = SmallDataset();
    const Plan plan = GpuPlanFor(model, "zb-1p", 2, 2, 1, 4);
    GpuDevice device(plan, model, dataset, 1, {0, 0, 1}, TestGpu(), FewSms(), kSms);
    CHECK(device.arena_bytes() == ArenaBytes(plan.slots[1]));
    const auto& program = plan.programs[1];
    size_t messages = 0;
    for (const Instruction& i : program) {
      if (OperandsOf(i.op) != Operands::kMessage) continue;
      ++messages;
      const std::span<std::byte> bytes = device.Message(i);
      CHECK(reinterpret_cast<uintptr_t>(bytes.data()) % kSlotAlignment == 0);
      CHECK(bytes.size() == static_cast<size_t>(model.tokens() * model.width) * 2);
      // No value has come yet: the memory is full of NaN.
      std::vector<std::byte> there(bytes.size());
      TestGpu().CopyToHost(TestStream(), there.data(), bytes.data(), bytes.size());
      TestGpu().Synchronize();
      CHECK(std::ranges::all_of(there, [](std::byte b) { return b == std::byte{0xff}; }));
    }
    CHECK(messages > 0);
    CHECK_THROWS_WITH_AS(device.StageAt(0), "this rank holds no copy of stage 0; verify the plan",
                         Error);
  }

  TEST_CASE("GPU device: an overflow and what is not finite end the training") {
    const Model model = SmallGpuModel();
    const Dataset dataset = SmallDataset();
    const Plan plan = GpuPlanFor(model, "1f1b", 1, 1, 1, 3);
    OneByOneRun run(plan, model, dataset, 1, TestGpu(), FewSms(), kSms);
    run.Step(1);
    Stage& stage = run.At({0, 0, 0}).StageAt(0);
    const auto blocks = stage.blocks();
    constexpr size_t kAt = 3;  // of a gradient
    std::string name;
    for (const ParameterBlock& block : blocks) {
      if (block.name == "final_norm") stage.parameters()[block.offset] = 1e38f * 10;
      if (block.offset <= kAt && kAt < block.offset + block.size) name = block.name;
    }
    run.At({0, 0, 0}).Put(0);
    CHECK_THROWS_WITH_AS(run.Step(2),
                         "step 2: the loss of micro-batch 0 is not finite; lower the model's "
                         "learning_rate, or resume from a checkpoint",
                         Error);
    GpuDevice& device = run.At({0, 0, 0});
    device.BeginStep(FewSms());
    const float infinite = INFINITY;
    TestGpu().CopyToDevice(FewSms(), &device.Gradients(0)[kAt], &infinite, sizeof(infinite));
    device.OptimizerStep(0, FewSms());
    device.Download(3, FewSms());
    TestGpu().Synchronize();
    const std::string error = "step 3: a gradient of \"" + name +
                              "\" in stage 0 is not finite; lower the model's learning_rate, or "
                              "resume from a checkpoint";
    CHECK_THROWS_WITH_AS(device.Results(3), error.c_str(), Error);
    device.BeginStep(FewSms());
    for (const Instruction& i : plan.programs[0]) {
      if (i.op != Op::DISPATCH_F) continue;
      const int32_t one = 1;
      TestGpu().CopyToDevice(TestStream(), device.Exchange(i).overflow, &one, sizeof(one));
      break;
    }
    device.Download(4, FewSms());
    TestGpu().Synchronize();
    CHECK_THROWS_WITH_AS(device.Results(4), doctest::Contains("more rows came to the experts"),
                         Error);
  }
}

}  // namespace
}  // namespace contraflow::reference_test
