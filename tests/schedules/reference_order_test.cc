// The orders of the original implementations, operation for operation. tests/reference/orders.json
// was obtained by running them (deepseek-ai/DualPipe 3da1bbe,
// sail-sg/zero-bubble-pipeline-parallelism 39f2c18 and others) and simulating the result with an
// independent simulator, torch_*.csv by running PyTorch's pipelining/schedules.py (00722e6) for 4
// ranks and 8 micro-batches.

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/support.h"
#include "tests/support/torch_rows.h"

namespace contraflow::reference_order_test {
namespace {

using nlohmann::json;

json ReferenceOrders() {
  std::ifstream file(CF_TEST_DIR "/reference/orders.json");
  return json::parse(file);
}

std::string JoinProgram(const Program& program) {
  std::string text;
  for (const Instruction& i : program) text += (text.empty() ? "" : " ; ") + ToString(i);
  return text;
}

Spec SpecOf(const json& order) {
  Spec spec;
  spec.schedule = order["schedule"];
  spec.ranks = order["ranks"];
  spec.microbatches = order["microbatches"];
  const json& costs = order["costs"];
  const auto ticks = [&](const char* key) { return ToTicks(costs[key], Unit::kUnit, key); };
  spec.costs = UniformCosts(ticks("f"), ticks("b"), ticks("w"), ticks("comm"));
  if (costs.contains("fb")) spec.costs.stages[0].fb = ticks("fb");
  return spec;
}

/// Name of an instruction in PyTorch's CSV.
std::string TorchName(const Instruction& i) {
  const auto name = [](int stage, const char* letter, int microbatch) {
    return std::to_string(stage) + letter + std::to_string(microbatch);
  };
  if (i.op == Op::FB) {
    return "(" + name(i.stage, "F", i.microbatch) + ";" +
           name(i.back_stage, "B", i.back_microbatch) + ")OVERLAP_F_B";
  }
  return name(i.stage,
              i.op == Op::F   ? "F"
              : i.op == Op::B ? "I"
              : i.op == Op::W ? "W"
                              : "B",
              i.microbatch);
}

TEST_SUITE("unit") {
  TEST_CASE("orders are those of the original implementations") {
    std::map<std::string, int> compared;
    for (const json& order : ReferenceOrders()) {
      const std::string name = order["schedule"];
      ++compared[name];
      const Spec spec = SpecOf(order);
      CAPTURES(name, spec.ranks, order["costs"].dump());
      const Plan plan = GeneratePlan(spec);
      REQUIRE(plan.routes.size() == order["routes"].size());
      for (size_t i = 0; i < plan.routes.size(); ++i) {
        CHECK(plan.routes[i].ranks == order["routes"][i]["ranks"].get<std::vector<int>>());
        CHECK(plan.routes[i].microbatches ==
              order["routes"][i]["microbatches"].get<std::vector<int>>());
      }
      REQUIRE(plan.programs.size() == order["programs"].size());
      for (size_t r = 0; r < plan.programs.size(); ++r) {
        CHECK(JoinProgram(plan.programs[r]) == order["programs"][r].get<std::string>());
      }
      for (const Level level : {Level::kCompute, Level::kComm}) {
        const Simulation simulation =
            Simulate(Lower(plan, spec.costs, {.target = level}), spec.costs);
        CHECK(FromTicks(simulation.makespan, Unit::kUnit) == order["makespan"].get<double>());
        for (size_t r = 0; r < plan.programs.size(); ++r) {
          CHECK(FromTicks(simulation.ranks[r].busy, Unit::kUnit) == order["busy"][r].get<double>());
          CHECK(simulation.ranks[r].peak_activations == order["peak_activations"][r].get<int>());
        }
      }
    }
    CHECK(compared == std::map<std::string, int>{{"1f1b", 2},
                                                 {"dualpipe", 2},
                                                 {"dualpipe-v", 1},
                                                 {"interleaved-1f1b", 2},
                                                 {"v-half", 2},
                                                 {"v-min", 2},
                                                 {"zb-1p", 2},
                                                 {"zb-2p", 2},
                                                 {"zb-v", 2}});
  }

  TEST_CASE("gpipe runs all forwards, then all backwards, both ascending") {
    const Plan plan = GeneratePlan(MakeSpec("gpipe", 3, 2, UniformCosts(1, 1, 1)));
    for (size_t r = 0; r < 3; ++r) {
      const std::string stage = " s" + std::to_string(r);
      CHECK(JoinProgram(plan.programs[r]) ==
            "F" + stage + " m0 ; F" + stage + " m1 ; BW" + stage + " m0 ; BW" + stage + " m1");
    }
  }

  TEST_CASE("orders are those of PyTorch") {
    for (const auto& [schedule, file] :
         std::vector<std::pair<std::string, std::string>>{{"dualpipe-v", "DualPipeV"},
                                                          {"interleaved-1f1b", "Interleaved1F1B"},
                                                          {"zb-1p", "InterleavedZeroBubble"},
                                                          {"zb-v", "ZBVZeroBubble"}}) {
      CAPTURE(schedule);
      const Plan plan = GeneratePlan(MakeSpec(schedule, 4, 8, UniformCosts(1, 1, 1)));
      TorchRows expected = SplitTorchCsv(TorchReference(file));
      for (std::vector<std::string>& row : expected) std::erase(row, "");  // idle slots
      REQUIRE(expected.size() == 4);
      for (size_t r = 0; r < 4; ++r) {
        std::vector<std::string> order;
        for (const Instruction& i : plan.programs[r]) order.push_back(TorchName(i));
        CHECK(order == expected[r]);
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::reference_order_test
