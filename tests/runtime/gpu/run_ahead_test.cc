// Steps that are given to a GPU before the one ahead of them is done.

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/run.h"
#include "runtime/host/run.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"

namespace contraflow::run_ahead_test {
namespace {

constexpr uint64_t kSeed = 4;
constexpr GpuRunOptions kUnstamped = {{.graph = true, .stamps = 0}};

struct Training {
  explicit Training(float clip) {
    // Few experts, as tiles take time in the emulator.
    model.experts = 2;
    model.top_k = 1;
    for (uint64_t seed = 1; plan.layers != 1; ++seed) {
      plan = GpuPlanFor(model, "1f1b", 2, 2, 1, seed);
    }
    // Another step size in every step.
    model.warmup_steps = 2;
    model.decay_steps = 6;
    model.minimum_learning_rate = 1e-4f;
    model.clip = clip;
  }

  Model model = SmallGpuModel();
  Plan plan;
  const Dataset dataset = SmallDataset();
};

std::vector<uint32_t> BitsOf(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

/// Parameters and moments.
std::vector<uint32_t> BitsOf(Stage& stage) {
  std::vector<uint32_t> state;
  for (const std::span<const float> values :
       {std::span<const float>(stage.parameters()), std::span<const float>(stage.first_moments()),
        std::span<const float>(stage.second_moments())}) {
    const std::vector<uint32_t> bits = BitsOf(values);
    state.insert(state.end(), bits.begin(), bits.end());
  }
  return state;
}

/// A GPU that tells what it is asked for: L where a graph is launched, W where the host has begun
/// to wait for one. It is slow, and has done no more than it was waited for; or fast, and has done
/// all that it was given.
class ToldGpu : public EmulatedGpu {
 public:
  explicit ToldGpu(bool fast = false) : fast_(fast) {}
  void Launch(GpuGraph* graph, gpu::Stream stream) override {
    calls += 'L';
    EmulatedGpu::Launch(graph, stream);
  }
  bool Done(GpuEvent* event) override {
    if (calls.empty() || calls.back() != 'W') calls += 'W';
    if (fast_) Synchronize();
    return EmulatedGpu::Done(event);
  }

  std::string calls;

 private:
  const bool fast_;
};

/// All that a training gives, step by step and at its end, bit for bit.
std::map<std::string, std::vector<uint32_t>> Train(const Training& training, int steps, bool ahead,
                                                   bool fast, std::string* calls) {
  ToldGpu gpu(fast);
  GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu, kUnstamped);
  std::map<std::string, std::vector<uint32_t>> outcome;
  gpu.calls.clear();
  for (int step = 1; step <= steps; ++step) {
    if (ahead && step < steps) CHECK(run.BeginAhead(step + 1));
    const StepResult result = run.Step(step);
    gpu.calls += ' ';
    const auto norm = static_cast<float>(result.gradient_norm);
    CHECK((norm > 0) == (training.model.clip > 0));
    CHECK(result.duration > 0);
    const std::string name = " " + std::to_string(step);
    outcome["losses" + name] = BitsOf(result.losses);
    outcome["norm" + name] = BitsOf({&norm, 1});
    outcome["dropped" + name] = {static_cast<uint32_t>(result.dropped)};
  }
  *calls = gpu.calls;
  for (const StageCopy& copy : CopiesOf(training.plan, run)) {
    const std::string name = std::to_string(copy.device.member) + "." +
                             std::to_string(copy.device.rank) + " s" + std::to_string(copy.stage);
    outcome["state " + name] = BitsOf(*copy.held);
    outcome["gradients " + name] = BitsOf(copy.held->gradients());
  }
  return outcome;
}

/// A device, one gradient of which is NaN in one step: what the host learns when the next one is
/// under way.
class PoisonedDevice : public GpuDevice {
 public:
  template <typename... Arguments>
  PoisonedDevice(int bad, Gpu& gpu, Arguments&&... arguments)
      : GpuDevice(std::forward<Arguments>(arguments)...),
        bad_(bad),
        gpu_(gpu),
        poison_(reinterpret_cast<float*>(gpu.Allocate(sizeof(float)))) {}

  void Upload(int step, gpu::Stream stream) override {
    GpuDevice::Upload(step, stream);
    const float poison = step == bad_ ? NAN : 0;
    gpu_.CopyToDevice(stream, poison_, &poison, sizeof poison);
  }
  void OptimizerStep(int stage, gpu::Stream stream) override {
    gpu::OrderedSum(stream, gpu::SumParts{{Gradients(stage).data(), poison_}, 2}, 1, 1);
    GpuDevice::OptimizerStep(stage, stream);
  }

 private:
  const int bad_;
  Gpu& gpu_;
  float* const poison_;
};

/// Trains until a step fails, if one does. In step `bad` rank 1 has a gradient that is NaN.
struct PoisonedRun {
  PoisonedRun(const Training& training, int bad, const GpuRunOptions& options = kUnstamped)
      : ranks(training.plan, gpu, options, [&](Device device, gpu::Stream setup, int sms) {
          return std::make_unique<PoisonedDevice>(device.rank == 1 ? bad : 0, gpu, training.plan,
                                                  training.model, training.dataset, kSeed, device,
                                                  gpu, setup, sms);
        }) {}
  std::vector<uint32_t> StateOfRank(int rank) {
    return BitsOf(static_cast<GpuDevice&>(ranks.At({0, 0, rank})).StageAt(rank));
  }

  ToldGpu gpu;
  VirtualRanks ranks;
};

/// A GPU of which one step is never done, by its number.
class StuckGpu : public EmulatedGpu {
 public:
  explicit StuckGpu(int step) : left_(step) {}

  gpu::Stream NewStream(int partition, Priority priority, const std::string& name) override {
    const gpu::Stream stream = EmulatedGpu::NewStream(partition, priority, name);
    if (name == "step") step_ = stream;
    return stream;
  }
  void BeginCapture(gpu::Stream stream) override {
    capturing_ = true;
    EmulatedGpu::BeginCapture(stream);
  }
  GpuGraph* EndCapture(gpu::Stream stream) override {
    capturing_ = false;
    return EmulatedGpu::EndCapture(stream);
  }
  void Record(GpuEvent* event, gpu::Stream stream) override {
    EmulatedGpu::Record(event, stream);
    if (!capturing_ && stream.handle == step_.handle && --left_ == 0) never_ = event;
  }
  bool Done(GpuEvent* event) override {
    if (event == never_) return false;
    Synchronize(event);  // at once, however long it takes here
    return true;
  }

 private:
  int left_;
  bool capturing_ = false;
  gpu::Stream step_{};
  GpuEvent* never_ = nullptr;
};

TEST_SUITE("kernel") {
  TEST_CASE("run ahead: the next step is launched before this one is waited for, the same bits") {
    for (const float clip : {0.0f, 0.25f}) {
      if (kSanitized && clip == 0) continue;
      CAPTURE(clip);
      const Training training(clip);
      std::string calls;
      const auto one_by_one = Train(training, 3, false, false, &calls);
      CHECK(calls == "LW LW LW ");
      CHECK(Train(training, 3, true, false, &calls) == one_by_one);
      CHECK(calls == "LLW LW W ");
      if (clip > 0) CHECK(Train(training, 3, true, true, &calls) == one_by_one);
    }
  }

  TEST_CASE("run ahead: a step that is not finite changes nothing, nor does the one after it") {
    for (const float clip : {0.0f, 0.25f}) {
      if (kSanitized && clip == 0) continue;
      CAPTURE(clip);
      const Training training(clip);
      constexpr int kBad = 2;
      std::vector<std::vector<std::vector<uint32_t>>> states;  // by step, by rank
      PoisonedRun sound(training, 0);
      for (int step = 1; step <= kBad; ++step) {
        sound.ranks.Step(step);
        states.push_back({sound.StateOfRank(0), sound.StateOfRank(1)});
      }
      PoisonedRun run(training, kBad);
      run.gpu.calls.clear();
      const std::string error = Failure([&] {
        for (int step = 1; step <= kBad; ++step) {
          CHECK(run.ranks.BeginAhead(step + 1));
          run.ranks.Step(step);
        }
      });
      CHECK(error.find("step 2: a gradient of \"") == 0);
      CHECK(Contains(error, "\" in stage 1 is not finite; lower the model's learning_rate"));
      CHECK(run.gpu.calls == "LLWLW");
      CHECK(states[0][0] != states[1][0]);
      CHECK(states[0][1] != states[1][1]);
      // A stage, like on the host, is updated before another one's gradients are known; but not
      // where their norm is waited for, nor in the step after.
      CHECK(run.StateOfRank(0) == states[clip > 0 ? 0 : 1][0]);
      CHECK(run.StateOfRank(1) == states[0][1]);
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("run ahead: only with a graph and without stamps") {
    const Training training(0);
    // Which of steps 2 to 12 may.
    const auto ahead = [&](const GpuRunOptions& options) {
      EmulatedGpu gpu;
      GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu, options);
      std::string may;
      for (int step = 2; step <= 12; ++step) may += run.BeginAhead(step) ? 'y' : 'n';
      return may;
    };
    CHECK(ahead(kUnstamped) == "yyyyyyyyyyy");
    CHECK(ahead({{.graph = false, .stamps = 0}}) == "nnnnnnnnnnn");
    CHECK(ahead({{.graph = true, .stamps = 1}}) == "nnnnnnnnnnn");
    CHECK(ahead({{.graph = true, .stamps = 5}}) == "yyynnyyynny");
  }

  TEST_CASE("run ahead: a step that hangs is given up with its own number") {
    const Training training(0);
    for (const int stuck : {1, 2}) {
      StuckGpu gpu(stuck);
      GpuRunOptions options = kUnstamped;
      options.timeout = std::chrono::milliseconds(200);
      GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu, options);
      const std::string error = Failure<GpuHang>([&] {
        for (int step = 1; step <= 2; ++step) {
          run.BeginAhead(step + 1);
          run.Step(step);
        }
      });
      CHECK(error == "the GPU has made no progress for 0.2 s in step " + std::to_string(stuck) +
                         "; what it is at is not known without stamps");
    }
  }
}

}  // namespace
}  // namespace contraflow::run_ahead_test
