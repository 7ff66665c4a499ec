#include "runtime/stage.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "compiler/error.h"
#include "tests/stage_fixture.h"

namespace contraflow {
namespace {

// Bit for bit: unlike ==, tells 0 from -0 and takes NaN for itself.
bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

bool Any(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float v) { return v != 0; });
}

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
  Chain chain(model, 2);
  const MicroBatch micro = RandomMicroBatch(model, 1);
  for (Stage& stage : chain.stages) {
    FillUniform(9, 1, stage.gradients().size(), stage.gradients().data());
  }
  const std::vector<float> gradients = chain.Gradients(), parameters = chain.Parameters();
  Chain::Flight flight = chain.Forward(micro);
  CHECK(SameBits(chain.Gradients(), gradients));
  chain.BackwardInput(flight, 1);
  CHECK(SameBits(chain.Gradients(), gradients));
  std::vector<std::vector<float>> before;
  for (Stage& stage : chain.stages) {
    before.emplace_back(stage.gradients().begin(), stage.gradients().end());
  }
  chain.BackwardWeight(flight);
  for (size_t s = 0; s < 2; ++s) {
    for (const ParameterBlock& block : chain.stages[s].blocks()) {
      CAPTURE(block.name);
      CHECK_FALSE(SameBits(chain.stages[s].gradients().subspan(block.offset, block.size),
                           std::span(before[s]).subspan(block.offset, block.size)));
    }
  }
  CHECK(SameBits(chain.Parameters(), parameters));
}

TEST_CASE("stage: W frees the stash W before B and a second B are refused") {
  const Model model = AwkwardModel(1);
  Stage stage(model, 0, 1, 1);
  StashPtr stash;
  float loss = 0;
  stage.Forward(RandomMicroBatch(model, 1), {}, &stash, &loss);
  StashPtr early;
  stage.Forward(RandomMicroBatch(model, 1), {}, &early, &loss);
  CHECK_THROWS_AS(stage.BackwardWeight(std::move(early)), InternalError);
  CHECK_FALSE(Any(stage.gradients()));
  stage.BackwardInput({}, 1, stash.get());
  CHECK_THROWS_AS(stage.BackwardInput({}, 1, stash.get()), InternalError);
  stage.BackwardWeight(std::move(stash));
  CHECK(stash == nullptr);
  CHECK(Any(stage.gradients()));
}

TEST_CASE("stage: when W runs changes nothing as long as the order of micro-batches stays") {
  const Model model = AwkwardModel(3);
  const std::vector<MicroBatch> micros = Micros(model, 3);
  Chain at_once(model, 3);
  std::vector<float> losses;
  for (const MicroBatch& micro : micros) losses.push_back(at_once.Train(micro, 0.5f));

  Chain delayed(model, 3);
  std::vector<Chain::Flight> flights;
  for (const MicroBatch& micro : micros) flights.push_back(delayed.Forward(micro));
  delayed.BackwardInput(flights[0], 0.5f);
  delayed.BackwardInput(flights[1], 0.5f);
  delayed.BackwardWeight(flights[0]);
  delayed.BackwardInput(flights[2], 0.5f);
  delayed.BackwardWeight(flights[1]);
  delayed.BackwardWeight(flights[2]);
  for (size_t m = 0; m < micros.size(); ++m) CHECK(flights[m].loss == losses[m]);
  CHECK(SameBits(delayed.Gradients(), at_once.Gradients()));
}

TEST_CASE("stage: 1 2 3 and 4 stages give the same bits over several steps") {
  const Model model = AwkwardModel(4);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  Chain whole(model, 1);
  std::vector<Chain> cut;
  for (const int stages : {2, 3, 4}) cut.emplace_back(model, stages);
  for (int step = 1; step <= 3; ++step) {
    for (Stage& stage : whole.stages) stage.ZeroGradients();
    std::vector<float> losses;
    for (const MicroBatch& micro : micros) losses.push_back(whole.Train(micro, 0.5f));
    const std::vector<float> gradients = whole.Gradients();
    for (Stage& stage : whole.stages) stage.OptimizerStep(step);
    for (Chain& chain : cut) {
      CAPTURE(chain.stages.size());
      for (Stage& stage : chain.stages) stage.ZeroGradients();
      for (size_t m = 0; m < micros.size(); ++m) {
        CHECK(chain.Train(micros[m], 0.5f) == losses[m]);
      }
      CHECK(SameBits(chain.Gradients(), gradients));
      for (Stage& stage : chain.stages) stage.OptimizerStep(step);
      CHECK(SameBits(chain.Parameters(), whole.Parameters()));
    }
  }
}

TEST_CASE("stage: the same bits in every thread") {
  Model model = FitModel(ReadModel("tiny"), 2);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  Chain alone(model, 2);
  for (const MicroBatch& micro : micros) alone.Train(micro, 0.5f);
  std::vector<Chain> chains;
  for (int i = 0; i < 4; ++i) chains.emplace_back(model, 2);
  std::vector<std::thread> threads;
  for (Chain& chain : chains) {
    threads.emplace_back([&chain, &micros] {
      for (const MicroBatch& micro : micros) chain.Train(micro, 0.5f);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Chain& chain : chains) CHECK(SameBits(chain.Gradients(), alone.Gradients()));
}

TEST_CASE("stage: blocks cover the parameters exactly and carry their names") {
  const Model model = AwkwardModel(3);
  for (int s = 0; s < 2; ++s) {
    Stage stage(model, s, 2, 1);
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
  Stage last(model, 1, 2, 1);
  std::vector<std::string> names;
  for (const ParameterBlock& block : last.blocks()) names.push_back(block.name);
  CHECK(names == std::vector<std::string>{
                     "layer 2 attention_norm", "layer 2 qkv", "layer 2 output",
                     "layer 2 expert_norm", "layer 2 router", "layer 2 expert 0 gate_up",
                     "layer 2 expert 1 gate_up", "layer 2 expert 2 gate_up",
                     "layer 2 expert 3 gate_up", "layer 2 expert 4 gate_up",
                     "layer 2 expert 0 down", "layer 2 expert 1 down", "layer 2 expert 2 down",
                     "layer 2 expert 3 down", "layer 2 expert 4 down", "final_norm", "head"});
  CHECK(Stage(model, 0, 2, 1).blocks()[0].name == "embedding");
}

TEST_CASE("stage: initial weights hang on the seed and differ from block to block") {
  const Model model = AwkwardModel(2);
  Chain one(model, 1, 1), same(model, 2, 1), other(model, 1, 2);
  CHECK(SameBits(one.Parameters(), same.Parameters()));
  CHECK_FALSE(SameBits(one.Parameters(), other.Parameters()));
  const auto blocks = one.stages[0].blocks();
  for (size_t a = 0; a < blocks.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (blocks[a].name.find("norm") != std::string::npos) continue;
      if (blocks[a].size != blocks[b].size) continue;
      CAPTURE(blocks[a].name);
      CAPTURE(blocks[b].name);
      CHECK_FALSE(SameBits(one.stages[0].parameters().subspan(blocks[a].offset, blocks[a].size),
                           one.stages[0].parameters().subspan(blocks[b].offset, blocks[b].size)));
    }
  }
}

TEST_CASE("stage: starts from the loss of guessing and learns a micro-batch by heart") {
  Model model = FitModel(ReadModel("tiny"), 2);
  Chain chain(model, 2);
  const MicroBatch micro = RandomMicroBatch(model, 3);
  float loss = 0;
  for (int step = 1; step <= 100; ++step) {
    for (Stage& stage : chain.stages) stage.ZeroGradients();
    loss = chain.Train(micro, 1);
    if (step == 1) CHECK(loss == doctest::Approx(std::log(256.0)).epsilon(0.01));
    for (Stage& stage : chain.stages) stage.OptimizerStep(step);
  }
  CHECK(loss < 1);
}

TEST_CASE("stage: gradients follow the loss scale") {
  const Model model = AwkwardModel(2);
  Chain full(model, 2), quarter(model, 2);
  const MicroBatch micro = RandomMicroBatch(model, 1);
  CHECK(full.Train(micro, 1) == quarter.Train(micro, 0.25f));
  std::vector<float> scaled = quarter.Gradients();
  for (float& g : scaled) g *= 4;
  // A power of two scales every float of the chain exactly.
  CHECK(scaled == full.Gradients());
}

TEST_CASE("stage: the learning rate warms up zero gradients leave only the decay") {
  Model model = AwkwardModel(1);
  model.learning_rate = 0.1f;
  model.warmup_steps = 4;
  model.weight_decay = 0.5f;
  Stage stage(model, 0, 1, 1);
  for (const int step : {1, 2, 4, 9}) {
    const std::vector<float> before(stage.parameters().begin(), stage.parameters().end());
    stage.OptimizerStep(step);
    const double rate = 0.1 * std::min(1.0, step / 4.0);
    for (size_t i = 0; i < before.size(); ++i) {
      REQUIRE(stage.parameters()[i] == doctest::Approx(before[i] * (1 - rate * 0.5)).epsilon(1e-5));
    }
  }
}

TEST_SUITE_END();

}  // namespace contraflow
