// Compiles, proves and simulates a plan with the installed library alone.

#include <contraflow/contraflow.h>

#include <cstdio>

int main() {
  using namespace contraflow;
  Spec spec;
  spec.schedule = "dualpipe";
  spec.ranks = 4;
  spec.microbatches = 8;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  const Plan plan = Compile(spec);
  const bool sound = Verify(plan).empty() && ReadPlan(WritePlan(plan), "memory") == plan;
  const Time makespan = Simulate(plan, *plan.costs).makespan;
  const Report report = MakeReport(plan, *plan.costs);
  CompareRequest request;
  request.spec = spec;
  request.no_auto = true;
  const Advice advice = Advise(Compare(request));
  std::printf("sound=%d makespan=%s gap=%.4f\n%s\n", sound,
              FormatTime(makespan, Unit::kUnit).c_str(), report.gap(), advice.text.c_str());
  return sound && makespan == 26'000'000 && report.simulation.makespan == makespan ? 0 : 1;
}
