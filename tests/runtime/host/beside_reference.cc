#include "tests/runtime/host/beside_reference.h"

#include <doctest/doctest.h>

#include <chrono>

#include "runtime/core/check.h"
#include "runtime/launch/threaded_run.h"
#include "tests/support/run_support.h"

namespace contraflow {

TrainingOutcome TrainBesideReference(const Plan& plan, const Model& model, bool strict) {
  const Dataset dataset = SmallDataset();
  ThreadedRun run(plan, model, dataset, 7, {.strict = strict, .timeout = std::chrono::seconds(20)});
  ReferenceRun reference(plan, model, dataset, 7);
  TrainingOutcome outcome;
  for (int step = 1; step <= 2 && outcome.difference.empty(); ++step) {
    const StepResult result = run.Step(step);
    const Comparison comparison = CompareStep(plan, step, result, run, reference);
    outcome.difference = comparison.difference;
    outcome.dropped += result.dropped;
    if (outcome.difference.empty()) CHECK(comparison.values > 1000);
  }
  return outcome;
}

}  // namespace contraflow
