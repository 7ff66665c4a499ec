// Any bytes are a schedule of PyTorch's or an Error. One that is read survives writing, Verify
// returns on it, and where it is sound it lowers and simulates to its end.

#include <cstddef>
#include <cstdint>
#include <string_view>

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
  CF_ASSERT(contraflow::ReadTorchCsv(contraflow::WriteTorchCsv(plan), "again") == plan);
  if (!contraflow::Verify(plan).empty()) return 0;
  const CostModel costs = contraflow::UniformCosts(2, 2, 1, 1);
  const Plan lowered = contraflow::Lower(plan, costs, {.target = contraflow::Level::kComm});
  CF_ASSERT(contraflow::Simulate(lowered, costs).makespan > 0);
  return 0;
}
