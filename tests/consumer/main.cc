// Compiles, proves and simulates a schedule with the installed libraries alone.

#include <cstdio>

#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "runtime/model/model.h"
#include "schedules/registry.h"

int main() {
  using namespace contraflow;
  Spec spec;
  spec.schedule = "dualpipe";
  spec.ranks = 4;
  spec.microbatches = 8;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  const Plan plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComm});
  const bool sound = Verify(plan).empty() && ReadPlan(WritePlan(plan), "memory") == plan;
  const Time makespan = Simulate(plan, spec.costs).makespan;
  const int layers = FitModel(ReadModel("tiny"), plan.stages).layers;
  std::printf("sound=%d makespan=%s layers>0=%d\n", sound,
              FormatTime(makespan, Unit::kUnit).c_str(), layers > 0);
  return sound && makespan == 26'000'000 && layers > 0 ? 0 : 1;
}
