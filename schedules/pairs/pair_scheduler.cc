#include "schedules/pairs/pair_scheduler.h"

#include "schedules/pairs/pair_run.h"
#include "schedules/published/bidirectional.h"
#include "schedules/published/placement.h"

namespace contraflow {

std::optional<Order> PhaseOrder(const SearchProblem& problem) {
  const Plan& frame = problem.frame;
  if (frame.routes.size() != 1 || frame.routes[0].ranks != VPlacement(frame.ranks)) {
    return std::nullopt;
  }
  const int ranks = frame.ranks;
  if (frame.microbatches < 2 * ranks) return std::nullopt;
  Plan plan = frame;
  for (int r = 0; r < ranks; ++r) {
    plan.program(r) = BidirectionalProgram({
        .stage = {r, 2 * ranks - 1 - r},
        .first = {0, 0},
        .ahead = ranks - 1 - r,
        .behind = r,
        .pairs = frame.microbatches - 2 * ranks + r + 1,
        .middle = r == ranks - 1,
    });
  }
  std::optional<Order> order = ToOrder(problem, plan);
  if (!order || !IncrementalEvaluator::Of(problem, *order)) return std::nullopt;
  return order;
}

}  // namespace contraflow
