// Copies to the host in the order of a published schedule: one that was made for a looser limit is
// shorter and holds more, and what it holds too much may have somewhere to go.

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recompute_cost.h"
#include "schedules/recompute/offload.h"
#include "schedules/search/candidates.h"
#include "schedules/search/incumbent.h"

namespace contraflow {
namespace {

/// How much looser the limits are that orders are made for, in quarters.
constexpr int kLooser[] = {4, 6, 8, 16};

Spec Loosened(Spec spec, int quarters) {
  for (std::optional<int64_t>* limit : {&spec.memory_limit, &spec.device_memory}) {
    if (*limit) *limit = std::max<int64_t>(1, **limit / 4 * quarters + **limit % 4 * quarters / 4);
  }
  spec.offload = {};
  return spec;
}

}  // namespace

std::vector<int> StagesToOffload(int count, const Spec& spec) {
  std::vector<int> stages = spec.offload.stages;
  if (spec.offload.choice == Offload::Choice::kFull) {
    stages.resize(static_cast<size_t>(count));
    std::iota(stages.begin(), stages.end(), 0);
  }
  if (stages.empty() || stages.back() < count) return stages;
  throw Error("`offload`: there is no stage " + std::to_string(stages.back()) + ", " +
              spec.schedule + " makes " + std::to_string(count) + " stages (0.." +
              std::to_string(count - 1) + ")");
}

Plan GenerateOffloaded(const Spec& spec, const GenerateResident& generate) {
  CheckHostCost(spec.costs, true);
  const bool limited = spec.memory_limit || !DevicesOf(spec).empty();
  Incumbent best(spec);
  std::optional<Error> why_not;  // of the limit itself
  for (const int quarters : kLooser) {
    if (!limited && best.any()) break;
    best.Try([&] {
      Plan plan = generate(Loosened(spec, quarters));
      if (spec.offload.choice != Offload::Choice::kAuto) {
        return OffloadStages(plan, spec.costs, StagesToOffload(plan.stages, spec));
      }
      std::vector<int64_t> limits = LimitsOfRanks(plan, spec);
      limits.resize(static_cast<size_t>(plan.ranks), INT64_MAX);
      return OffloadToFit(plan, spec.costs, limits);
    });
    if (!why_not) why_not = best.why_not();
  }
  if (!best.any()) throw *why_not;
  return best.Take();
}

}  // namespace contraflow
