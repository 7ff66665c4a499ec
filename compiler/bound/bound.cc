// Every figure here is a proof, so each file says why no schedule can be faster.

#include "compiler/bound/bound.h"

#include <algorithm>

#include "compiler/bound/work.h"
#include "compiler/plan/error.h"
#include "compiler/plan/recomputed.h"

namespace contraflow {

std::string_view Name(BoundKind kind) {
  switch (kind) {
    case BoundKind::kNothing:
      return "nothing to do";
    case BoundKind::kCriticalPath:
      return "critical path";
    case BoundKind::kBusyRank:
      return "busy rank";
    case BoundKind::kOrder:
      return "order of micro-batches";
    case BoundKind::kTwoWindows:
      return "two windows";
    case BoundKind::kPairs:
      return "pairs";
    case BoundKind::kMemoryArea:
      return "memory x time";
    case BoundKind::kLink:
      return "link";
    case BoundKind::kLane:
      return "lane of components";
  }
  CF_ASSERT(false && "a bound without a name");
  return "";
}

void Raise(Bound* best, const Bound& bound) {
  CF_ASSERT(bound.value == bound.head + bound.work + bound.idle + bound.tail);
  if (best->kind == BoundKind::kNothing || bound.value > best->value) *best = bound;
}

namespace {

void RaiseByAll(const BoundInput& input, Bound* best) {
  RaiseByChunks(input, best);
  RaiseByWindows(input, best);
  RaiseByRankWindows(input, best);
  RaiseByArea(input, best);
  RaiseByOrder(input, best);
}

}  // namespace

Bound ProveBound(const Plan& plan, const CostModel& costs, std::optional<int64_t> memory_limit) {
  CheckCosts(costs, plan.stages, plan.microbatches, plan.layers);
  Bound best;
  if (plan.layers > 0) {
    RaiseByComponents(plan, costs, &best);
    if (memory_limit && !RecomputedCells(plan).any()) {
      RaiseByComponentWindows(plan, costs, *memory_limit, &best);
    }
    return best;
  }
  const BoundInput input = MakeBoundInput(plan, costs, memory_limit);
  RaiseByAll(input, &best);
  if (std::find(input.recomputes.begin(), input.recomputes.end(), true) != input.recomputes.end()) {
    // A schedule is no longer without its R, though it may hold more. That lets the windows of
    // ranks that recompute speak.
    Plan without;
    without.ranks = plan.ranks;
    without.stages = plan.stages;
    without.microbatches = plan.microbatches;
    without.routes = plan.routes;
    RaiseByAll(MakeBoundInput(without, costs, std::nullopt), &best);
  }
  return best;
}

Time LowerBound(const Plan& plan, const CostModel& costs) { return ProveBound(plan, costs).value; }

}  // namespace contraflow
