// Any bytes are a plan, a rank's part of one, or an Error. A plan survives writing in both forms,
// Verify returns on it, and where it is sound Simulate ends and agrees with itself.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "compiler/files/plan_io.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"

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

void CheckPart(const RankPlan& part) {
  CF_ASSERT(ReadRankPlan(WriteRankPlan(part.plan, part.rank), "part") == part);
}

/// False if `read` throws Error.
template <typename Read>
bool Accepts(Read read) {
  try {
    read();
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view document(reinterpret_cast<const char*>(data), size);
  contraflow::Plan plan;
  contraflow::RankPlan part;
  if (contraflow::Accepts([&] { plan = contraflow::ReadPlan(document, "input"); })) {
    contraflow::Check(plan);
  } else if (contraflow::Accepts([&] { part = contraflow::ReadRankPlan(document, "input"); })) {
    contraflow::CheckPart(part);
  }
  return 0;
}
