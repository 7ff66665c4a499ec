// Any bytes are a trace of a run or an Error. Of one that is a run of this plan, the idle time of
// every rank has causes that come to all of it.

#include "tools/profile/run_trace.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "tests/support/support.h"
#include "tools/report/explanation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  static const Plan plan = Compile(MakeSpec("1f1b", 2, 2, UniformCosts(2, 2, 1, 1)));
  const std::string text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(LooksLikeTrace(text));
  Timeline measured;
  try {
    measured = ReadRun(plan, {{"input", text}}).timeline;
  } catch (const Error&) {
    return 0;
  }
  const CostModel& costs = *plan.costs;
  const Explanation run = ExplainRun(plan, costs, RunOf(plan, costs, measured));
  for (size_t rank = 0; rank < run.idle.size(); ++rank) {
    const std::vector<Time> causes = run.ByCause(static_cast<int>(rank));
    CF_ASSERT(std::accumulate(causes.begin(), causes.end(), Time{0}) ==
              run.simulation.ranks[rank].bubble);
  }
  const Explanation predicted = ExplainRun(plan, costs, Simulate(plan, costs));
  CF_ASSERT(!CompareRuns(predicted, run).empty());
  static_cast<void>(RunsToJson(predicted, run, 1));
  return 0;
}
