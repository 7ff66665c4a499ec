#include "runtime/host/stage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "tests/runtime/host/stage_fixture.h"
#include "tests/support/failure.h"

namespace contraflow::stage_test {
namespace {

// Bit for bit: unlike ==, tells 0 from -0 and takes NaN for itself.
bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

/// A stage with all experts to itself.
LayerShape ShapeOf(const Model& model) { return LayerShape(model, 1, model.experts); }

std::vector<MicroBatch> Micros(const Model& model, int count) {
  std::vector<MicroBatch> micros;
  for (int m = 0; m < count; ++m) {
    micros.push_back(RandomMicroBatch(model, 100 + static_cast<uint64_t>(m)));
  }
  return micros;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("stage: B leaves the weight gradients untouched W moves every block") {
  const Model model = AwkwardModel(4);
  Training<float> whole(model);
  Stage& stage = whole.stage();
  const MicroBatch micro = RandomMicroBatch(model, 1);
  FillUniform(9, 1, stage.gradients().size(), stage.gradients().data());
  const std::vector<float> gradients = Copy(stage.gradients()),
                           parameters = Copy(stage.parameters());
  whole.Forward({&micro, 1});
  whole.BackwardInput(1);
  CHECK(SameBits(stage.gradients(), gradients));
  whole.Weight(1);
  for (const ParameterBlock& block : stage.blocks()) {
    CAPTURE(block.name);
    CHECK_FALSE(SameBits(stage.gradients().subspan(block.offset, block.size),
                         std::span(gradients).subspan(block.offset, block.size)));
  }
  CHECK(SameBits(stage.parameters(), parameters));
}

TEST_CASE("stage: the same bits in every thread") {
  const Model model = FitModel(ReadModel("tiny"), 2);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  const auto gradients = [&] {
    Training<float> whole(model);
    for (const MicroBatch& micro : micros) whole.Train(micro, 0.5f);
    return Copy(whole.stage().gradients());
  };
  std::vector<std::vector<float>> all(4);
  std::vector<std::thread> threads;
  for (std::vector<float>& of_thread : all) {
    threads.emplace_back([&] { of_thread = gradients(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& of_thread : all) CHECK(SameBits(of_thread, gradients()));
}

TEST_CASE("stage: blocks cover the parameters exactly and carry their names") {
  const Model model = AwkwardModel(3);
  for (int s = 0; s < 2; ++s) {
    Stage stage(model, ShapeOf(model), 0, s, 2, 1);
    size_t end = 0;
    for (const ParameterBlock& block : stage.blocks()) {
      CHECK(block.offset == end);
      CHECK(block.size > 0);
      end += block.size;
    }
    CHECK(end == stage.parameters().size());
    CHECK(end == stage.gradients().size());
    CHECK(reinterpret_cast<uintptr_t>(stage.parameters().data()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(stage.gradients().data()) % 64 == 0);
  }
  Stage last(model, ShapeOf(model), 0, 1, 2, 1);
  std::vector<std::string> names;
  for (const ParameterBlock& block : last.blocks()) names.push_back(block.name);
  CHECK(names == std::vector<std::string>{
                     "layer 2 attention_norm", "layer 2 expert_norm", "final_norm", "layer 2 qkv",
                     "layer 2 output", "layer 2 router", "head", "layer 2 expert 0 gate_up",
                     "layer 2 expert 1 gate_up", "layer 2 expert 2 gate_up",
                     "layer 2 expert 3 gate_up", "layer 2 expert 4 gate_up",
                     "layer 2 expert 0 down", "layer 2 expert 1 down", "layer 2 expert 2 down",
                     "layer 2 expert 3 down", "layer 2 expert 4 down"});
  CHECK(last.dense_gradients().size() == last.blocks()[7].offset);
  CHECK(last.dense_gradients().size() + last.expert_gradients().size() == last.gradients().size());
  CHECK(Stage(model, ShapeOf(model), 0, 0, 2, 1).blocks()[4].name == "embedding");
}

TEST_CASE("stage: initial weights hang on the seed and differ from block to block") {
  const Model model = AwkwardModel(2);
  Stage one(model, ShapeOf(model), 0, 0, 1, 1), other(model, ShapeOf(model), 0, 0, 1, 2);
  const auto part = [](Stage& stage, const ParameterBlock& block) {
    return stage.parameters().subspan(block.offset, block.size);
  };
  for (const ParameterBlock& a : one.blocks()) {
    CAPTURE(a.name);
    if (Contains(a.name, "norm")) continue;
    CHECK_FALSE(SameBits(part(one, a), part(other, a)));
    for (const ParameterBlock& b : one.blocks()) {
      CHECK((a.name == b.name) == SameBits(part(one, a), part(one, b)));
    }
  }
}

TEST_CASE("stage: starts from the loss of guessing and learns a micro-batch by heart") {
  const Model model = FitModel(ReadModel("tiny"), 2);
  Training<float> whole(model);
  const MicroBatch micro = RandomMicroBatch(model, 3);
  float loss = 0;
  for (int step = 1; step <= 100; ++step) {
    whole.stage().ZeroGradients();
    loss = whole.Train(micro, 1);
    if (step == 1) CHECK(loss == doctest::Approx(std::log(256.0)).epsilon(0.01));
    whole.stage().OptimizerStep(step);
  }
  CHECK(loss < 1);
}

TEST_CASE("stage: gradients follow the loss scale") {
  const Model model = AwkwardModel(2);
  Training<float> full(model), quarter(model);
  const MicroBatch micro = RandomMicroBatch(model, 1);
  CHECK(full.Train(micro, 1) == quarter.Train(micro, 0.25f));
  // A power of two scales every float of the chain exactly.
  for (float& gradient : quarter.stage().gradients()) gradient *= 4;
  CHECK(std::ranges::equal(quarter.stage().gradients(), full.stage().gradients()));
}

TEST_CASE("stage: the learning rate warms up zero gradients leave only the decay of matrices") {
  Model model = AwkwardModel(1);
  model.learning_rate = 0.1f;
  model.warmup_steps = 4;
  model.weight_decay = 0.5f;
  Stage stage(model, ShapeOf(model), 0, 0, 1, 1);
  for (const int step : {1, 2, 4, 9}) {
    const std::vector<float> before(stage.parameters().begin(), stage.parameters().end());
    stage.OptimizerStep(step);
    const double rate = 0.1 * std::min(1.0, step / 4.0);
    for (const ParameterBlock& block : stage.blocks()) {
      CAPTURE(block.name);
      const bool gain = Contains(block.name, "norm");
      for (size_t i = block.offset; i < block.offset + block.size; ++i) {
        REQUIRE(stage.parameters()[i] ==
                doctest::Approx(before[i] * (gain ? 1 : 1 - rate * 0.5)).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("stage: the parts of any partition begin with the weights of the whole") {
  Model model = AwkwardModel(4);
  model.experts = 6;
  Stage whole(model, ShapeOf(model), 0, 0, 1, 1);
  size_t blocks = 0;
  for (int stage = 0; stage < 3; ++stage) {
    for (int member = 0; member < 3; ++member) {
      Stage part(model, LayerShape(model, 3, 2), member, stage, 3, 1);
      for (const ParameterBlock& block : part.blocks()) {
        CAPTURE(block.name);
        const auto there = std::ranges::find(whole.blocks(), block.name, &ParameterBlock::name);
        REQUIRE(there != whole.blocks().end());
        CHECK(SameBits(part.parameters().subspan(block.offset, block.size),
                       whole.parameters().subspan(there->offset, there->size)));
        blocks += member == 0 || Contains(block.name, " expert ") ? 1 : 0;
      }
    }
  }
  CHECK(blocks == whole.blocks().size());
}

TEST_CASE("stage: a group's tokens get from the experts what one alone gets for them") {
  // Twice as many tokens through the same weights, as one device and as two members: the same sums
  // but for rounding.
  const Model model = AwkwardModel(3);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  Training<float> alone(model), group(model, 1, 2);
  const std::vector<float> losses = group.Train(micros, 0.5f);
  for (size_t m = 0; m < 2; ++m) {
    CHECK(losses[m] == doctest::Approx(alone.Train(micros[m], 0.5f)).epsilon(1e-5));
  }
  CHECK(BlocksApart(group.stage(), alone.stage(), 1e-5) == "");
}

TEST_SUITE_END();

}  // namespace contraflow::stage_test
