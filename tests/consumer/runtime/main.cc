// Trains two steps with a plan and the installed libraries alone.

#include <contraflow/contraflow.h>
#include <contraflow/runtime.h>

#include <cstdio>
#include <string>

int main() {
  using namespace contraflow;
  Spec spec;
  spec.schedule = "zb-1p";
  spec.ranks = 2;
  spec.microbatches = 4;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  const Plan plan = Compile(spec);
  const Model model = FitModel(ReadModel("tiny"), plan.stages);
  const Dataset text = {"one letter", std::string(10'000, 'a')};
  ThreadedRun run(plan, model, text, 7, {});
  const double first = run.Step(1).loss, second = run.Step(2).loss;
  std::printf("loss %.4f, then %.4f\n", first, second);
  return first > second && second > 0 ? 0 : 1;
}
