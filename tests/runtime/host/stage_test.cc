#include "runtime/host/stage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "compiler/plan/error.h"
#include "tests/runtime/host/stage_fixture.h"

namespace contraflow::stage_test {
namespace {

// Bit for bit: unlike ==, tells 0 from -0 and takes NaN for itself.
bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

using Blocks = std::map<std::string, std::vector<float>>;

bool SameBits(const Blocks& a, const Blocks& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && SameBits(x.second, y.second);
  });
}

/// A stage with all experts to itself.
LayerShape ShapeOf(const Model& model) { return LayerShape(model, 1, model.experts); }

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
  for (WholeStage<float>& whole : chain.stages) {
    FillUniform(9, 1, whole.stage().gradients().size(), whole.stage().gradients().data());
  }
  const Blocks gradients = chain.Gradients(), parameters = chain.Parameters();
  Chain::Flight flight = chain.Forward(micro);
  CHECK(SameBits(chain.Gradients(), gradients));
  chain.BackwardInput(flight, 1);
  CHECK(SameBits(chain.Gradients(), gradients));
  chain.BackwardWeight(flight);
  for (const auto& [name, values] : chain.Gradients()) {
    CAPTURE(name);
    CHECK_FALSE(SameBits(values, gradients.at(name)));
  }
  CHECK(SameBits(chain.Parameters(), parameters));
}

TEST_CASE("stage: W before B and a second B or W are refused") {
  const Model model = AwkwardModel(1);
  WholeStage<float> whole(model, 0, 1, 1, 1);
  const std::span<float> gradients = whole.stage().gradients();
  const MicroBatch micro = RandomMicroBatch(model, 1);
  WholeStash<float> stash;
  std::vector<float> losses;
  whole.Forward(std::span(&micro, 1), {}, &stash, &losses);
  CHECK_THROWS_AS(whole.BackwardWeight(&stash), InternalError);
  CHECK_FALSE(Any(gradients));
  whole.BackwardInput({}, 1, &stash);
  CHECK_THROWS_AS(whole.BackwardInput({}, 1, &stash), InternalError);
  whole.BackwardWeight(&stash);
  CHECK_THROWS_AS(whole.BackwardWeight(&stash), InternalError);
  CHECK(Any(gradients));
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
  for (size_t m = 0; m < micros.size(); ++m) CHECK(flights[m].loss() == losses[m]);
  CHECK(SameBits(delayed.Gradients(), at_once.Gradients()));
}

TEST_CASE("stage: 1 2 3 and 4 stages give the same bits over several steps") {
  const Model model = AwkwardModel(4);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  Chain whole(model, 1);
  std::vector<Chain> cut;
  for (const int stages : {2, 3, 4}) cut.emplace_back(model, stages);
  for (int step = 1; step <= 3; ++step) {
    for (WholeStage<float>& stage : whole.stages) stage.stage().ZeroGradients();
    std::vector<float> losses;
    for (const MicroBatch& micro : micros) losses.push_back(whole.Train(micro, 0.5f));
    const Blocks gradients = whole.Gradients();
    for (WholeStage<float>& stage : whole.stages) stage.stage().OptimizerStep(step);
    for (Chain& chain : cut) {
      CAPTURE(chain.stages.size());
      for (WholeStage<float>& stage : chain.stages) stage.stage().ZeroGradients();
      for (size_t m = 0; m < micros.size(); ++m) {
        CHECK(chain.Train(micros[m], 0.5f) == losses[m]);
      }
      CHECK(SameBits(chain.Gradients(), gradients));
      for (WholeStage<float>& stage : chain.stages) stage.stage().OptimizerStep(step);
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
                     "layer 2 attention_norm", "layer 2 qkv", "layer 2 output",
                     "layer 2 expert_norm", "layer 2 router", "final_norm", "head",
                     "layer 2 expert 0 gate_up", "layer 2 expert 1 gate_up",
                     "layer 2 expert 2 gate_up", "layer 2 expert 3 gate_up",
                     "layer 2 expert 4 gate_up", "layer 2 expert 0 down", "layer 2 expert 1 down",
                     "layer 2 expert 2 down", "layer 2 expert 3 down", "layer 2 expert 4 down"});
  CHECK(last.dense_gradients().size() == last.blocks()[7].offset);
  CHECK(last.dense_gradients().size() + last.expert_gradients().size() == last.gradients().size());
  CHECK(Stage(model, ShapeOf(model), 0, 0, 2, 1).blocks()[0].name == "embedding");
}

TEST_CASE("stage: initial weights hang on the seed and differ from block to block") {
  const Model model = AwkwardModel(2);
  Chain one(model, 1, 1), same(model, 2, 1), other(model, 1, 2);
  CHECK(SameBits(one.Parameters(), same.Parameters()));
  CHECK_FALSE(SameBits(one.Parameters(), other.Parameters()));
  const Blocks blocks = one.Parameters();
  for (auto a = blocks.begin(); a != blocks.end(); ++a) {
    for (auto b = blocks.begin(); b != a; ++b) {
      if (a->first.find("norm") != std::string::npos) continue;
      CAPTURE(a->first);
      CAPTURE(b->first);
      CHECK_FALSE(SameBits(a->second, b->second));
    }
  }
}

TEST_CASE("stage: starts from the loss of guessing and learns a micro-batch by heart") {
  Model model = FitModel(ReadModel("tiny"), 2);
  Chain chain(model, 2);
  const MicroBatch micro = RandomMicroBatch(model, 3);
  float loss = 0;
  for (int step = 1; step <= 100; ++step) {
    for (WholeStage<float>& stage : chain.stages) stage.stage().ZeroGradients();
    loss = chain.Train(micro, 1);
    if (step == 1) CHECK(loss == doctest::Approx(std::log(256.0)).epsilon(0.01));
    for (WholeStage<float>& stage : chain.stages) stage.stage().OptimizerStep(step);
  }
  CHECK(loss < 1);
}

TEST_CASE("stage: gradients follow the loss scale") {
  const Model model = AwkwardModel(2);
  Chain full(model, 2), quarter(model, 2);
  const MicroBatch micro = RandomMicroBatch(model, 1);
  CHECK(full.Train(micro, 1) == quarter.Train(micro, 0.25f));
  Blocks scaled = quarter.Gradients();
  for (auto& [name, values] : scaled) {
    for (float& g : values) g *= 4;
  }
  // A power of two scales every float of the chain exactly.
  CHECK(scaled == full.Gradients());
}

TEST_CASE("stage: the learning rate warms up zero gradients leave only the decay") {
  Model model = AwkwardModel(1);
  model.learning_rate = 0.1f;
  model.warmup_steps = 4;
  model.weight_decay = 0.5f;
  Stage stage(model, ShapeOf(model), 0, 0, 1, 1);
  for (const int step : {1, 2, 4, 9}) {
    const std::vector<float> before(stage.parameters().begin(), stage.parameters().end());
    stage.OptimizerStep(step);
    const double rate = 0.1 * std::min(1.0, step / 4.0);
    for (size_t i = 0; i < before.size(); ++i) {
      REQUIRE(stage.parameters()[i] == doctest::Approx(before[i] * (1 - rate * 0.5)).epsilon(1e-5));
    }
  }
}

TEST_CASE("stage: the members of a group own the experts of the whole stage between them") {
  Model model = AwkwardModel(2);
  model.experts = 6;
  Chain whole(model, 1);
  const Blocks all = whole.Parameters();
  size_t experts = 0;
  for (int member = 0; member < 3; ++member) {
    Stage stage(model, LayerShape(model, 3, 2), member, 0, 1, 1);
    for (const ParameterBlock& block : stage.blocks()) {
      CAPTURE(member);
      CAPTURE(block.name);
      CHECK(SameBits(stage.parameters().subspan(block.offset, block.size), all.at(block.name)));
      if (block.name.find(" expert ") != std::string::npos) ++experts;
    }
  }
  CHECK(experts == 2 * 6 * 2);  // layers, experts, matrices
}

TEST_CASE("stage: a group's tokens get from the experts what one alone gets for them") {
  // Twice as many tokens through the same weights, as one device and as two members: the same sums
  // but for rounding.
  const Model model = AwkwardModel(3);
  const std::vector<MicroBatch> micros = Micros(model, 2);
  Chain alone(model, 1), group(model, 1, 1, 2);
  const float first = alone.Train(micros[0], 0.5f), second = alone.Train(micros[1], 0.5f);
  const Chain::Flight flight = group.TrainAll(micros, 0.5f);
  CHECK(flight.losses[0] == doctest::Approx(first).epsilon(1e-5));
  CHECK(flight.losses[1] == doctest::Approx(second).epsilon(1e-5));
  const Blocks want = alone.Gradients();
  for (const auto& [name, values] : group.Gradients()) {
    CAPTURE(name);
    double error = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(values[i] - want.at(name)[i]), 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    CHECK(norm > 0);
    CHECK(std::sqrt(error) <= 1e-5 * std::sqrt(norm));
  }
}

TEST_SUITE_END();

}  // namespace contraflow::stage_test
