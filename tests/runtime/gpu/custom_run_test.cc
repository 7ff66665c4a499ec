// Custom stages on an emulated GPU: what the issuer makes of their plans, and what they compute
// there when the GPU takes every liberty that streams and events leave it.

#include "runtime/launch/custom_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/serial_plan.h"
#include "runtime/gpu/custom_device.h"
#include "runtime/gpu/run.h"
#include "runtime/stages/custom_check.h"
#include "runtime/stages/stage_api.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/emulator.h"
#include "tests/runtime/exec/issue_log.h"
#include "tests/runtime/gpu/emulated_stages.h"
#include "tests/support/failure.h"

namespace contraflow::gpu_custom_test {
namespace {

/// Trains on an emulated GPU, and compares with the serial run on the host; "" if all is equal.
std::string Train(const Plan& plan, const GpuRunOptions& options, uint64_t seed) try {
  const contraflow_stage_api api = EmulatedStages();
  const Plan serial_plan = SerialPlan(plan);
  const CustomStages on_gpu(api, plan, true, 7, ""),
      on_host(*contraflow_stages(), serial_plan, false, 7, "");
  EmulatedGpu gpu(EmulatedGpuOptions{.seed = seed});
  GpuCustomRun run(on_gpu, gpu, options);
  CustomRun serial(on_host, {});
  for (int step = 1; step <= 3; ++step) {
    const StepResult result = run.Step(step);
    const std::vector<float> losses = serial.Step(step).losses;
    if (losses != result.losses) return "losses of step " + std::to_string(step);
    for (const Device& device : run.devices()) {
      for (const int s : run.At(device).Held()) {
        if (WeightsOf(run.At(device).At(s)) != WeightsOf(serial.At(device).At(s))) {
          return "weights of stage " + std::to_string(s) + " in step " + std::to_string(step);
        }
      }
    }
  }
  return "";
} catch (const Error& error) {
  return error.what();
}

/// Copies from where the example's stages have their memory, which is not that of the emulator.
class StageGpu : public EmulatedGpu {
 public:
  using EmulatedGpu::EmulatedGpu;
  void CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) override try {
    EmulatedGpu::CopyToHost(stream, to, from, bytes);
  } catch (const gpu::GpuError&) {
    emulator::Enqueue(stream.handle, "read", [=] { std::memcpy(to, from, bytes); });
    Synchronize();
  }
};

/// Steps of the plan on a GPU compared with those of one stage after the other there; `spoil` may
/// change the weights of the run after the first. Returns the first difference.
std::string Check(const Plan& plan, uint64_t seed, bool spoil, int64_t* bytes) {
  const contraflow_stage_api api = EmulatedStages();
  const CustomStages stages(api, plan, true, 7, "");
  StageGpu gpu(EmulatedGpuOptions{.seed = seed});
  GpuCustomRun run(stages, gpu, {{.stamps = 0}});
  CustomCheck check(stages, run);
  for (int step = 1; step <= 2; ++step) {
    const StepResult result = run.Step(step);
    if (spoil && step == 2) run.At({0, 0, 1}).At(1).gradients()[5] += 1;
    const std::string difference = check.DifferenceIn(step, result, bytes);
    if (!difference.empty()) return difference;
  }
  return "";
}

/// Arguments of the calls of stages that do nothing else.
struct Recorded {
  Executed executed;
  std::vector<std::string> calls;  // "1 s2 F m3": on rank 1, of stage 2
};
Recorded* recorded = nullptr;

contraflow_stage_api Recording() {
  struct Copy {
    contraflow_copy copy;
    float gradient = 0;
  };
  static const auto call = [](void* self, const char* what, int m, void* stream) -> const char* {
    const contraflow_copy& copy = static_cast<Copy*>(self)->copy;
    recorded->calls.push_back(std::to_string(copy.rank) + " s" + std::to_string(copy.stage) + " " +
                              what + " m" + std::to_string(m));
    emulator::Enqueue(stream, recorded->calls.back().c_str(), [] {});
    return nullptr;
  };
  contraflow_stage_api api = *contraflow_stages();
  api.create = [](const contraflow_job*, const contraflow_copy* copy, void** self) -> const char* {
    *self = new Copy{*copy};
    return nullptr;
  };
  api.destroy = [](void* self) { delete static_cast<Copy*>(self); };
  api.begin_step = [](void*, int32_t, void*) -> const char* { return nullptr; };
  api.gradients = [](void* self, float** values, size_t* count) -> const char* {
    *values = &static_cast<Copy*>(self)->gradient;
    *count = 1;
    return nullptr;
  };
  api.forward = [](void* self, const contraflow_cell* cell, void* stream) {
    return call(self, "F", cell->microbatch, stream);
  };
  api.backward_input = [](void* self, const contraflow_cell* cell, void* stream) {
    return call(self, "B", cell->microbatch, stream);
  };
  api.backward_weight = [](void* self, const contraflow_cell* cell, void* stream) {
    return call(self, "W", cell->microbatch, stream);
  };
  api.optimizer_step = [](void* self, void* stream) { return call(self, "STEP", -1, stream); };
  api.block = nullptr;
  api.backward = nullptr;
  api.forward_backward = nullptr;
  return api;
}

/// The calls that a rank's program comes down to.
std::vector<std::string> CallsOf(const Plan& plan, int rank) {
  std::vector<std::string> calls;
  const auto add = [&](int stage, const char* what, int m) {
    calls.push_back(std::to_string(rank) + " s" + std::to_string(stage) + " " + what + " m" +
                    std::to_string(m));
  };
  for (const Instruction& i : plan.program(rank)) {
    if (HasForward(i.op)) add(i.stage, "F", i.microbatch);
    if (HasBackward(i.op)) add(BackStage(i), "B", BackMicrobatch(i));
    if (HasWeight(i.op)) add(BackStage(i), "W", BackMicrobatch(i));
    if (WorkOf(i.op) == Work::kStep) add(i.stage, "STEP", -1);
  }
  return calls;
}

/// A custom device whose instructions also leave their names.
class NamedCustomDevice : public NamedBackend {
 public:
  NamedCustomDevice(const CustomStages& stages, Device device, Gpu& gpu, gpu::Stream setup,
                    Executed* executed)
      : NamedBackend(stages.plan(), device, executed), device_(stages, device, gpu, setup, 8) {}

  void Compute(const Instruction& chunk, gpu::Stream stream) override {
    device_.Compute(chunk, stream);
    NamedBackend::Compute(chunk, stream);
  }
  void OptimizerStep(int stage, gpu::Stream stream) override {
    device_.OptimizerStep(stage, stream);
    NamedBackend::OptimizerStep(stage, stream);
  }

 private:
  GpuCustomDevice device_;
};

TEST_SUITE("equivalence") {
  TEST_CASE("custom stages on a GPU: as without a pipeline, whatever order streams allow") {
    const GpuRunOptions ways[] = {
        {{.graph = false}}, {{.graph = true}}, {{.graph = true, .stamps = false}}};
    size_t way = 0;  // plans take turns, and each schedule and level has two of the three
    for (const char* schedule : {"1f1b", "interleaved-1f1b", "zb-1p", "zb-v", "dualpipe"}) {
      for (const Level level : {Level::kComm, Level::kBuffer}) {
        const Plan plan = CustomPlan(schedule, 4, 8, level);
        CAPTURE(schedule);
        CAPTURE(Name(level));
        for (int turn = 0; turn < 2; ++turn, ++way) {
          CHECK(Train(plan, ways[way % std::size(ways)], way + 1) == "");
        }
      }
    }
  }

  TEST_CASE("custom stages on a GPU: the check computes there too and finds what differs") {
    int64_t bytes = 0;
    CHECK(Check(CustomPlan("zb-1p", 2, 4, Level::kComm), 1, false, &bytes) == "");
    // Losses, and of every copy the gradients and as many weights.
    constexpr int64_t kWeights = 2 * 32 * 48 * 4;
    CHECK(bytes == 2 * (4 * 4 + 2 * 2 * kWeights));
    // Copies of stages, and replicas.
    CHECK(Check(CustomPlan("dualpipe", 2, 4, Level::kBuffer, 2), 2, false, &bytes) == "");
    CHECK(Check(CustomPlan("1f1b", 1, 2, Level::kComm, 16), 3, false, &bytes) == "");
    CHECK(Check(CustomPlan("zb-1p", 2, 4, Level::kComm), 4, true, &bytes) ==
          "step 2: the gradient of stage 1 on replica 0 rank 1 is not the same as without a "
          "pipeline");
  }

  TEST_CASE("custom stages on a GPU: an event that is missing is noticed") {
    const Plan plan = CustomPlan("1f1b", 2, 6, Level::kBuffer);
    int removed = 0, noticed = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      for (size_t index = 0; index < plan.program(rank).size(); ++index) {
        const Instruction& i = plan.program(rank)[index];
        if (i.op != Op::F || i.after_count == 0) continue;
        ++removed;
        Plan other = plan;
        other.program(rank)[index].after_count = 0;
        for (uint64_t seed = 1; seed <= 8; ++seed) {
          if (Train(other, {{.stamps = false}}, seed).empty()) continue;
          ++noticed;
          break;
        }
      }
    }
    CHECK(removed >= 6);
    CHECK(noticed == removed);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("custom stages on a GPU: exactly the plan's instructions, lanes and events") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe", "interleaved-1f1b"}) {
      CAPTURE(schedule);
      const Plan plan = CustomPlan(schedule, 4, 8, Level::kBuffer);
      Recorded record;
      recorded = &record;
      const contraflow_stage_api api = Recording();
      const CustomStages stages(api, plan, true, 7, "");
      IssueOver<NamedCustomDevice> issue(
          plan, AllDevices(plan), {.graph = false, .stamps = false, .run_ahead = 1 << 20},
          [&](Device device, Gpu& gpu, GpuLanes& lanes) {
            return std::make_unique<NamedCustomDevice>(stages, device, gpu, lanes.streams()[0],
                                                       &record.executed);
          });
      record.calls.clear();
      issue.Step(1);
      // The interface's own kernels are no instructions.
      std::erase_if(issue.log, [](const GpuCall& call) {
        return call.kind == GpuCall::Kind::kKernel && Contains(call.kernel, " m");
      });
      CHECK(FlawOfIssue(plan, issue.log) == "");
      CHECK(FlawOfExecution(plan, record.executed) == "");
      for (int rank = 0; rank < plan.ranks; ++rank) {
        std::vector<std::string> of_rank;
        for (const std::string& call : record.calls) {
          if (call.rfind(std::to_string(rank) + " ", 0) == 0) of_rank.push_back(call);
        }
        CHECK(of_rank == CallsOf(plan, rank));
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::gpu_custom_test
