#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <string>

#include "runtime/basic_stage.h"
#include "tests/stage_fixture.h"

// The gradients of the whole chain of stages against central differences of its loss, in double:
// for every single parameter of every block, and for every activation that crosses a stage
// boundary.

namespace contraflow {
namespace {

constexpr double kStep = 1e-5;

// A model cut into stages, in double, with the micro-batches it is judged on.
struct DoubleChain {
  std::deque<BasicStage<double>> stages;
  std::vector<MicroBatch> micros;
  double loss_scale = 0.25;

  DoubleChain(const Model& model, int count, int microbatches) {
    for (int s = 0; s < count; ++s) stages.emplace_back(model, s, count, 7);
    for (int m = 0; m < microbatches; ++m) {
      micros.push_back(RandomMicroBatch(model, static_cast<uint64_t>(m)));
    }
  }

  // Loss of a micro-batch from the input of stage `from` on.
  double Loss(const MicroBatch& micro, std::vector<double> x, size_t from) const {
    double loss = 0;
    BasicStash<double> stash;
    for (size_t s = from; s < stages.size(); ++s) {
      x = stages[s].Forward(micro.tokens, micro.targets, x, &stash, &loss);
    }
    return loss * loss_scale;
  }
  double Loss() const {
    double sum = 0;
    for (const MicroBatch& micro : micros) sum += Loss(micro, {}, 0);
    return sum;
  }
};

// What the chain computes: the inputs of every stage and their gradients, for one micro-batch.
struct Crossing {
  std::vector<std::vector<double>> inputs, gradients;
};

Crossing Train(DoubleChain& chain, const MicroBatch& micro) {
  const size_t count = chain.stages.size();
  Crossing crossing{std::vector<std::vector<double>>(count), {}};
  crossing.gradients.resize(count);
  std::vector<BasicStash<double>> stashes(count);
  double loss = 0;
  std::vector<double> x;
  for (size_t s = 0; s < count; ++s) {
    crossing.inputs[s] = x;
    x = chain.stages[s].Forward(micro.tokens, micro.targets, x, &stashes[s], &loss);
  }
  std::vector<double> d;
  for (size_t s = count; s > 0; --s) {
    d = chain.stages[s - 1].BackwardInput(d, chain.loss_scale, &stashes[s - 1]);
    crossing.gradients[s - 1] = d;
  }
  for (size_t s = 0; s < count; ++s) chain.stages[s].BackwardWeight(&stashes[s]);
  return crossing;
}

double CentralDifference(double& at, const std::function<double()>& loss) {
  const double value = at;
  at = value + kStep;
  const double up = loss();
  at = value - kStep;
  const double down = loss();
  at = value;
  return (up - down) / (2 * kStep);
}

double Largest(std::span<const double> values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("gradient: every parameter agrees with finite differences") {
  struct Case {
    int layers, stages, top_k;
  };
  for (const Case& c : {Case{3, 3, 2}, {3, 2, 1}, {1, 1, 5}}) {
    Model model = AwkwardModel(c.layers);
    model.top_k = c.top_k;
    DoubleChain chain(model, c.stages, 2);
    for (const MicroBatch& micro : chain.micros) Train(chain, micro);
    for (BasicStage<double>& stage : chain.stages) {
      for (const ParameterBlock& block : stage.blocks()) {
        CAPTURE(c.stages);
        CAPTURE(block.name);
        const auto analytic = stage.gradients().subspan(block.offset, block.size);
        const double largest = Largest(analytic);
        // An expert that no token chose has no gradient; any other block must have one, or it would
        // agree with a loss that never sees it.
        const bool idle = block.name.find(" expert ") != std::string::npos && c.top_k == 1;
        CHECK((largest > 1e-6 || idle));
        double worst = 0;
        for (size_t i = 0; i < block.size; ++i) {
          const double numeric =
              CentralDifference(stage.parameters()[block.offset + i], [&] { return chain.Loss(); });
          worst = std::max(worst, std::abs(numeric - analytic[i]));
        }
        CHECK(worst <= 1e-5 * largest);
      }
    }
  }
}

TEST_CASE("gradient: every activation between stages agrees with finite differences") {
  DoubleChain chain(AwkwardModel(3), 3, 1);
  Crossing crossing = Train(chain, chain.micros[0]);
  CHECK(crossing.gradients[0].empty());
  for (size_t s = 1; s < 3; ++s) {
    CAPTURE(s);
    std::vector<double>& x = crossing.inputs[s];
    REQUIRE(x.size() == 15 * 6);
    REQUIRE(crossing.gradients[s].size() == x.size());
    const double largest = Largest(crossing.gradients[s]);
    CHECK(largest > 1e-4);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double numeric =
          CentralDifference(x[i], [&] { return chain.Loss(chain.micros[0], x, s); });
      worst = std::max(worst, std::abs(numeric - crossing.gradients[s][i]));
    }
    CHECK(worst < 1e-5 * largest);
  }
}

TEST_CASE("gradient: float agrees with double block by block") {
  const Model model = AwkwardModel(4);
  DoubleChain exact(model, 2, 2);
  Chain single(model, 2, 7);
  for (const MicroBatch& micro : exact.micros) {
    Train(exact, micro);
    single.Train(micro, 0.25f);
  }
  for (size_t s = 0; s < 2; ++s) {
    for (const ParameterBlock& block : exact.stages[s].blocks()) {
      CAPTURE(block.name);
      double error = 0, norm = 0;
      for (size_t i = block.offset; i < block.offset + block.size; ++i) {
        const double want = exact.stages[s].gradients()[i];
        const double difference = static_cast<double>(single.stages[s].gradients()[i]) - want;
        error += difference * difference;
        norm += want * want;
      }
      CHECK(std::sqrt(error) < 1e-5 * std::sqrt(norm));
    }
  }
}

TEST_SUITE_END();

}  // namespace contraflow
