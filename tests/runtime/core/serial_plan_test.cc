// The plan of --check is sound, has the same work, and gives the bits of the run without a plan.

#include "runtime/core/serial_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "compiler/lower/lower.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::serial_plan_test {
namespace {

int64_t CountOf(const Plan& plan, bool (*has)(Op)) {
  int64_t count = 0;
  for (const Program& program : plan.programs) {
    count += std::ranges::count_if(program, [&](const Instruction& i) { return has(i.op); });
  }
  return count;
}

TEST_SUITE("equivalence") {
  TEST_CASE("serial plan: sound under the strictest semantics, and equal to the reference run") {
    int count = 0;
    for (const Schedule* schedule : Schedules()) {
      const CostModel costs = UniformCosts(3, 4, 2, 1);
      Spec spec = MakeSpec(schedule->name, 4, 8, costs);
      spec.data_parallel = count % 2 + 1;
      if (!schedule->reject(spec).empty()) continue;
      CAPTURE(spec.schedule);
      const Plan plan = Lower(GeneratePlan(spec), costs, {.target = Level::kComm});
      const Plan serial = SerialPlan(plan);
      CHECK(serial.level == Level::kComm);
      CHECK(Verify(serial, Semantics::kRank).empty());
      CHECK(CountOf(serial, HasForward) == CountOf(plan, HasForward));
      CHECK(CountOf(serial, HasWeight) == CountOf(plan, HasWeight));
      CHECK(TrainBesideReference(serial, SmallModel(plan.stages), {.like = &plan}).difference ==
            "");
      ++count;
    }
    CHECK(count >= 5);
  }

  TEST_CASE("serial plan: of components, for expert groups") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      CAPTURE(schedule);
      const Model model = GroupModel();
      const Plan plan = PlanFor(model, schedule, 2, 4, 2, Level::kBuffer, 3);
      const Plan serial = SerialPlan(plan);
      CHECK(serial.level == Level::kComponent);
      CHECK(Verify(serial).empty());
      CHECK(TrainBesideReference(serial, model, {.like = &plan}).difference == "");
    }
  }
}

}  // namespace
}  // namespace contraflow::serial_plan_test
