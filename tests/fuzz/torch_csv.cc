// Any bytes are a schedule of PyTorch's or an Error. One that is read survives a plan file, and its
// compute order the CSV; Verify returns on it under all semantics, what it finds sound under one is
// so under the next, and what is sound lowers and simulates to its end.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "tools/interop/interop.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using contraflow::CostModel;
  using contraflow::Plan;
  Plan plan;
  try {
    plan = contraflow::ReadTorchCsv({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const contraflow::Error&) {
    return 0;
  }
  CF_ASSERT(contraflow::ReadPlan(contraflow::WritePlan(plan), "plan") == plan);
  bool sound = false;
  for (const contraflow::Semantics semantics : contraflow::kEverySemantics) {
    const bool now = contraflow::Verify(plan, semantics).empty();
    CF_ASSERT(now || !sound);
    sound = now;
  }
  const CostModel costs = contraflow::UniformCosts(2, 2, 1, 1);
  if (sound) CF_ASSERT(contraflow::Simulate(plan, costs).makespan > 0);
  const Plan order = contraflow::WithoutMessages(plan);
  CF_ASSERT(contraflow::ReadTorchCsv(contraflow::WriteTorchCsv(order), "again") == order);
  if (!contraflow::Verify(order).empty()) return 0;
  const Plan lowered = contraflow::Lower(order, costs, {.target = contraflow::Level::kComm});
  CF_ASSERT(contraflow::Simulate(lowered, costs).makespan > 0);
  return 0;
}
