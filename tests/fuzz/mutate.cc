// The bytes choose a schedule, a shape and a list of edits; what Verify then accepts must run to
// its end with the right gradients, and Simulate must not get stuck on it.

#include <cstddef>
#include <cstdint>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/mutants.h"
#include "tests/support/naive.h"
#include "tests/support/support.h"

namespace contraflow {
namespace {

/// One byte after the other, zeros behind the end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  int Next() { return at_ == end_ ? 0 : *at_++; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

void Check(Bytes bytes) {
  const Schedule& schedule = *Schedules()[static_cast<size_t>(bytes.Next()) % Schedules().size()];
  const int ranks = 1 + bytes.Next() % 5, microbatches = 1 + bytes.Next() % 12;
  Spec spec = MakeSpec(schedule.name, ranks, microbatches, UniformCosts(3, 4, 2, bytes.Next() % 3));
  spec.data_parallel = 1 + bytes.Next() % 2;
  if (!schedule.reject(spec).empty()) return;
  Plan plan = Compile(spec);
  for (int edit = 0; edit < 12 && !bytes.empty(); ++edit) {
    const auto operation = static_cast<size_t>(bytes.Next());
    const auto seed = static_cast<uint64_t>(bytes.Next());
    if (const auto mutant = MakeMutant(plan, operation, seed)) plan = mutant->plan;
  }
  for (const Finding& finding : Verify(plan)) CF_ASSERT(!ToString(finding, plan).empty());
  if (!Verify(plan).empty()) return;
  CF_ASSERT(RunSymbolically(plan).empty());
  CF_ASSERT(Simulate(plan, spec.costs).timeline == FixpointTimes(plan, spec.costs));
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::Check({data, size});
  return 0;
}
