// The orders of the original implementations, operation for operation. tests/reference/orders.json
// was obtained by running them (deepseek-ai/DualPipe 3da1bbe,
// sail-sg/zero-bubble-pipeline-parallelism 39f2c18 and others) and simulating the result with an
// independent simulator.

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compiler/lower.h"
#include "compiler/simulate.h"
#include "schedules/registry.h"

namespace contraflow {
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

bool IsBuilt(const std::string& name) {
  for (const Schedule* schedule : Schedules()) {
    if (schedule->name == name) return true;
  }
  return false;
}

TEST_SUITE("unit") {
  TEST_CASE("orders are those of the original implementations") {
    std::map<std::string, int> compared;
    for (const json& order : ReferenceOrders()) {
      const std::string name = order["schedule"];
      if (!IsBuilt(name)) continue;
      ++compared[name];
      const Spec spec = SpecOf(order);
      CAPTURE(name);
      CAPTURE(spec.ranks);
      CAPTURE(order["costs"].dump());
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
    CHECK(compared == std::map<std::string, int>{
                          {"1f1b", 2}, {"dualpipe", 2}, {"dualpipe-v", 1}, {"zb-1p", 2}});
  }
}

}  // namespace
}  // namespace contraflow
