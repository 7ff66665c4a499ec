#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>

#include "tests/runtime/host/stage_fixture.h"
#include "tests/support/sanitized.h"

// The gradients of the whole chain of stages against central differences of its loss, in double:
// for every single parameter of every block, and for every activation that crosses a stage
// boundary.

namespace contraflow::gradient_test {
namespace {

constexpr double kStep = 1e-5;

// A model cut into stages, in double, with the micro-batches it is judged on: `microbatches` of
// every member.
struct DoubleChain : BasicChain<double> {
  std::vector<std::vector<MicroBatch>> micros;
  double loss_scale = 0.25;

  DoubleChain(const Model& model, int count, int microbatches, int members = 1)
      : BasicChain<double>(model, count, 7, members) {
    for (int m = 0; m < microbatches; ++m) {
      std::vector<MicroBatch>& group = micros.emplace_back();
      for (int e = 0; e < members; ++e) {
        group.push_back(RandomMicroBatch(model, static_cast<uint64_t>(m + e * microbatches)));
      }
    }
  }

  // Loss of a micro-batch from the input of stage `from` on.
  double Loss(std::span<const MicroBatch> group, std::vector<double> x, size_t from) const {
    std::vector<double> losses;
    WholeStash<double> stash;
    for (size_t s = from; s < stages.size(); ++s) {
      x = stages[s].Forward(group, x, &stash, &losses);
    }
    return std::accumulate(losses.begin(), losses.end(), 0.0) * loss_scale;
  }
  double Loss() const {
    double sum = 0;
    for (const auto& group : micros) sum += Loss(group, {}, 0);
    return sum;
  }
};

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
    int layers, stages, top_k, members;
    float capacity;
  };
  for (const Case& c : {Case{3, 3, 2, 1, 0},
                        {3, 2, 1, 1, 0},
                        {1, 1, 5, 1, 0},
                        {2, 2, 2, 2, 0},
                        {2, 1, 2, 2, 0.7f}}) {
    Model model = AwkwardModel(c.layers);
    model.top_k = c.top_k;
    model.capacity_factor = c.capacity;
    DoubleChain chain(model, c.stages, c.members == 1 ? 2 : 1, c.members);
    int64_t dropped = 0;
    for (const auto& group : chain.micros) {
      DoubleChain::Flight flight = chain.Forward(group);
      for (const auto& stash : flight.stashes) dropped += WholeStage<double>::Dropped(stash);
      chain.BackwardInput(flight, chain.loss_scale);
      chain.BackwardWeight(flight);
    }
    CHECK((dropped > 0) == (c.capacity > 0));
    for (WholeStage<double>& whole : chain.stages) {
      BasicStage<double>& stage = whole.stage();
      for (const ParameterBlock& block : stage.blocks()) {
        CAPTURE(c.stages);
        CAPTURE(c.members);
        CAPTURE(block.name);
        const auto analytic = stage.gradients().subspan(block.offset, block.size);
        const double largest = Largest(analytic);
        // An expert that no token chose has no gradient; any other block must have one, or it would
        // agree with a loss that never sees it.
        const bool idle = block.name.find(" expert ") != std::string::npos && c.top_k == 1;
        CHECK((largest > 1e-6 || idle));
        double worst = 0;
        for (size_t i = 0; i < block.size; i += kSanitized ? 29 : 1) {
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
  DoubleChain::Flight crossing = chain.TrainAll(chain.micros[0], chain.loss_scale);
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
  for (const auto& group : exact.micros) {
    exact.TrainAll(group, 0.25);
    single.TrainAll(group, 0.25f);
  }
  const auto got = single.Gradients();
  for (const auto& [name, want] : exact.Gradients()) {
    CAPTURE(name);
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double difference = static_cast<double>(got.at(name)[i]) - want[i];
      error += difference * difference;
      norm += want[i] * want[i];
    }
    CHECK(std::sqrt(error) < 1e-5 * std::sqrt(norm));
  }
}

TEST_SUITE_END();

}  // namespace contraflow::gradient_test
