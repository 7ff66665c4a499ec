#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "tests/runtime/host/stage_fixture.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

// The gradients of a whole model against central differences of its loss, in double, for every
// single parameter of every block; and those in float against these.

namespace contraflow::gradient_test {
namespace {

constexpr double kStep = 1e-5, kLossScale = 0.25;

// `count` micro-batches of every member.
std::vector<std::vector<MicroBatch>> Micros(const Model& model, int count, int members) {
  std::vector<std::vector<MicroBatch>> micros(static_cast<size_t>(count));
  for (size_t m = 0; m < micros.size(); ++m) {
    for (int e = 0; e < members; ++e) {
      micros[m].push_back(RandomMicroBatch(model, m + static_cast<uint64_t>(e * count)));
    }
  }
  return micros;
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
    int layers, top_k, members;
    float capacity, balance_loss = 0;
    bool renormalise = false;
  };
  for (const Case& c : {Case{3, 2, 1, 0},
                        {3, 1, 1, 0},
                        {1, 5, 1, 0},
                        {2, 2, 2, 0},
                        {2, 2, 2, 0.7f},
                        {2, 3, 1, 0, 0.5f},
                        {2, 2, 1, 0, 0, true},
                        {2, 2, 2, 0.7f, 0.5f, true}}) {
    Model model = AwkwardModel(c.layers);
    model.top_k = c.top_k;
    model.capacity_factor = c.capacity;
    model.balance_loss = c.balance_loss;
    model.renormalise_top_k = c.renormalise;
    Training<double> whole(model, 7, c.members);
    const auto micros = Micros(model, c.members == 1 ? 2 : 1, c.members);
    int64_t dropped = 0;
    for (const auto& group : micros) {
      whole.Train(group, kLossScale);
      dropped += whole.dropped();
    }
    CHECK((dropped > 0) == (c.capacity > 0));
    const auto loss = [&] {
      double sum = 0;
      for (const auto& group : micros) {
        const std::vector<double> losses = whole.Forward(group);
        sum += std::accumulate(losses.begin(), losses.end(), 0.0) +
               static_cast<double>(c.balance_loss) * whole.balance();
      }
      return sum * kLossScale;
    };
    BasicStage<double>& stage = whole.stage();
    for (const ParameterBlock& block : stage.blocks()) {
      CAPTURE(c.members);
      CAPTURE(block.name);
      const auto analytic = stage.gradients().subspan(block.offset, block.size);
      const double largest = Largest(analytic);
      // An expert that no token chose has no gradient; any other block must have one, or it would
      // agree with a loss that never sees it.
      const bool idle = Contains(block.name, " expert ") && c.top_k == 1;
      CHECK((largest > 1e-6 || idle));
      double worst = 0;
      for (size_t i = 0; i < block.size; i += kSanitized ? 29 : 1) {
        double& at = stage.parameters()[block.offset + i];
        const double value = std::exchange(at, at + kStep);
        const double up = loss();
        at = value - kStep;
        const double numeric = (up - loss()) / (2 * kStep);
        at = value;
        worst = std::max(worst, std::abs(numeric - analytic[i]));
      }
      CHECK(worst <= 1e-5 * largest);
    }
  }
}

TEST_CASE("gradient: float agrees with double block by block") {
  const Model model = AwkwardModel(4);
  Training<double> exact(model, 7);
  Training<float> single(model, 7);
  for (const auto& group : Micros(model, 2, 1)) {
    exact.Train(group, kLossScale);
    single.Train(group, static_cast<float>(kLossScale));
  }
  CHECK(BlocksApart(single.stage(), exact.stage(), 1e-5) == "");
}

TEST_SUITE_END();

}  // namespace contraflow::gradient_test
