// Layouts that people wrote by hand, and those of the rules they go by, against --partition auto
// under the costs of the layers. All 40, with a line for each: CONTRAFLOW_LAYOUTS=40
// contraflow_cli_test -tc="no layout made by hand*".

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/partition/partition.h"
#include "tests/support/support.h"
#include "tools/cli/layer_layout.h"

namespace contraflow::hand_made_layouts_test {
namespace {

/// Parameters, in millions, that a token goes through: of one layer, of the layers with a dense MLP
/// in front of those with experts, and of the head. The costs of forwards are in proportion to
/// these.
struct Model {
  const char* name;
  int dense, layers;
  Time dense_layer, layer, head, mtp;  ///< mtp: 0 for none, else with its own pass over the head
};

constexpr Model kModels[] = {
    {"llama 3 70b", 0, 80, 0, 856, 1051, 0},     {"deepseek v3", 3, 61, 583, 583, 927, 1613},
    {"qwen 3 next 80b", 0, 48, 0, 60, 311, 375}, {"kimi k2", 1, 61, 497, 497, 1174, 0},
    {"glm 5.2", 3, 78, 490, 490, 951, 1517},
};

CostModel CostsOf(const Model& model) {
  CostModel costs;
  costs.comm.latency = 1000 * model.layer / 20;
  const auto add = [&](const char* name, int repeat, Time f, Time b, Time w) {
    if (repeat == 0) return;
    const StageCost cost = {.f = f, .b = b, .w = w, .bw = b + w, .fb = f + b + w};
    costs.layers.push_back({.name = name, .repeat = repeat, .cost = cost});
  };
  const auto alike = [&](const char* name, int repeat, Time millions) {
    add(name, repeat, 1000 * millions, 1000 * millions, 1000 * millions);
  };
  add("embedding", 1, 10 * model.layer, 0, 10 * model.layer);
  alike("dense", model.dense, model.dense_layer);
  alike("block", model.layers - model.dense, model.layer);
  if (model.mtp > 0) alike("mtp", 1, model.mtp);
  alike("head", 1, model.head);
  return costs;
}

/// A layout by hand: how many layers of the costs each stage has, also none.
struct Case {
  std::string name;
  Spec spec;
  std::vector<int> by_hand;
};

Case CaseOf(const Model& model, const std::string& how, int ranks, std::vector<int> by_hand) {
  const auto chunks = static_cast<int>(by_hand.size()) / ranks;
  Spec spec = MakeSpec(chunks > 1 ? "interleaved-1f1b" : "1f1b", ranks, 4 * ranks, CostsOf(model));
  spec.chunks = chunks;
  return {std::string(model.name) + ", " + how + ", P=" + std::to_string(ranks) + " x " +
              std::to_string(chunks),
          std::move(spec), std::move(by_hand)};
}

const Model& ModelOf(const std::string& name) {
  const auto is = [&](const Model& model) { return name.rfind(model.name, 0) == 0; };
  return *std::ranges::find_if(kModels, is);
}

/// Layouts of Megatron-Bridge's recipes.
std::vector<Case> OfRecipes() {
  std::ifstream file(CF_TEST_DIR "/reference/megatron_layouts.json");
  const nlohmann::json recipes = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const auto& recipe : recipes["layouts"]) {
    const std::string name = recipe["model"], text = recipe["layout"];
    std::vector<int> by_hand;
    for (const std::string& stage : ParseLayerLayout(text)) {
      by_hand.push_back(static_cast<int>(stage.size()));
    }
    cases.push_back(CaseOf(ModelOf(name), "recipe " + name, recipe["ranks"], std::move(by_hand)));
  }
  return cases;
}

/// Transformer layers evenly, the embedding with the first and all after them with the last stage.
std::vector<int> EvenBlocks(const Model& model, int stages) {
  std::vector<int> by_hand = EvenPartition(model.layers, stages);
  ++by_hand.front();
  by_hand.back() += model.mtp > 0 ? 2 : 1;
  return by_hand;
}

/// Layout as if the embedding and all after the transformer layers were transformer layers
/// (Megatron-LM, --account-for-embedding-in-pipeline-split and -loss-).
std::vector<int> EvenAll(const Model& model, int stages) {
  return EvenPartition(model.layers + (model.mtp > 0 ? 3 : 2), stages);
}

/// Layout with as many fewer transformer layers in the last stage as the head is worth, the others
/// evenly (Megatron-LM, --decoder-last-pipeline-num-layers).
std::vector<int> ShortLast(const Model& model, int stages) {
  const auto worth = static_cast<int>((model.head + model.mtp) / model.layer);
  const int last = std::max(0, model.layers / stages - worth);
  std::vector<int> by_hand = EvenPartition(model.layers - last, stages - 1);
  ++by_hand.front();
  by_hand.push_back(last + (model.mtp > 0 ? 2 : 1));
  return by_hand;
}

std::vector<Case> HandMade() {
  std::vector<Case> cases = OfRecipes();
  for (const Model& model : kModels) {
    for (const auto& [ranks, chunks] : {std::pair(8, 1), std::pair(4, 2)}) {
      const int stages = ranks * chunks;
      cases.push_back(CaseOf(model, "even", ranks, EvenBlocks(model, stages)));
      cases.push_back(CaseOf(model, "even with its ends", ranks, EvenAll(model, stages)));
      cases.push_back(CaseOf(model, "short last", ranks, ShortLast(model, stages)));
    }
  }
  cases.push_back(CaseOf(kModels[0], "even", 16, EvenBlocks(kModels[0], 16)));
  return cases;
}

/// Step of stages with these layers, some perhaps without any.
Time StepByHand(Spec spec, const std::vector<int>& by_hand) {
  LayerStages layers(spec.costs, Overlap::kAll);
  CostModel costs;
  costs.comm = spec.costs.comm;
  int first = 0;
  for (const int size : by_hand) {
    costs.stages.push_back(size > 0 ? layers.CostOf(first, first + size) : StageCost());
    first += size;
  }
  REQUIRE(first == layers.layers());
  spec.costs = costs;
  return Simulate(Compile(spec), costs).makespan;
}

TEST_SUITE("property") {
  TEST_CASE("no layout made by hand is shorter than --partition auto") {
    const char* const asked = std::getenv("CONTRAFLOW_LAYOUTS");
    const size_t wanted = asked == nullptr ? 6 : static_cast<size_t>(std::atoi(asked));
    const std::vector<Case> cases = HandMade();
    CHECK(cases.size() == 40);
    // Cases of all, or here and there.
    const size_t step = std::max<size_t>(1, cases.size() / std::max<size_t>(1, wanted));
    size_t count = 0;
    double sum = 0, best = 0;
    for (size_t i = 0; i < cases.size(); i += step) {
      const auto& [name, spec, by_hand] = cases[i];
      CAPTURE(name);
      const Plan plan = Compile(spec);
      const Time found = Simulate(plan, *plan.costs).makespan;
      const Time hand_made = StepByHand(spec, by_hand);
      CHECK(found <= hand_made);
      const double gain = 100 * (1 - static_cast<double>(found) / static_cast<double>(hand_made));
      ++count;
      sum += gain;
      best = std::max(best, gain);
      if (asked) std::printf("%-60s %6.2f %% shorter\n", name.c_str(), gain);
    }
    MESSAGE(count << " layouts, auto is " << sum / static_cast<double>(count)
                  << " % shorter in the mean and " << best << " % at best");
    CHECK(best > 1);
  }
}

}  // namespace
}  // namespace contraflow::hand_made_layouts_test
