// Any bytes are a plan or an Error. A plan survives writing in both forms, Verify returns on it,
// and where it is sound Simulate ends and agrees with itself.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "compiler/error.h"
#include "compiler/plan_io.h"
#include "compiler/simulate.h"
#include "compiler/trace_io.h"
#include "compiler/verify.h"

namespace contraflow {
namespace {

void Check(const Plan& plan) {
  const std::string text = WritePlan(plan);
  CF_ASSERT(ReadPlan(text, "text") == plan);
  CF_ASSERT(ReadPlan(WritePlanBinary(plan), "binary") == plan);
  // A few bytes can claim a large plan; its head is checked above, the rest would only be slow.
  if (int64_t{plan.stages} * plan.microbatches > 1 << 12 || plan.ranks > 1 << 8) return;
  if (!Verify(plan).empty()) return;
  const CostModel costs = plan.costs ? *plan.costs : UniformCosts(2, 2, 1, 1);
  const Simulation simulation = Simulate(plan, costs);
  CF_ASSERT(simulation.makespan == Makespan(simulation.timeline));
  CF_ASSERT(!WriteTrace(plan, simulation.timeline).empty());
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using contraflow::Error;
  contraflow::Plan plan;
  try {
    plan = contraflow::ReadPlan({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const Error&) {
    return 0;
  }
  contraflow::Check(plan);
  return 0;
}
