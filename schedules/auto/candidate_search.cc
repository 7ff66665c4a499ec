#include "schedules/auto/candidate_search.h"

#include "schedules/auto/offload_search.h"
#include "schedules/auto/order_search.h"
#include "schedules/auto/recompute_search.h"

namespace contraflow {

std::unique_ptr<CandidateSearch> SearchOf(const Candidate& candidate) {
  const Spec& spec = candidate.spec;
  if (spec.offload.choice != Offload::Choice::kNone) {
    return std::make_unique<OffloadSearch>(candidate);
  }
  if (spec.recompute.choice == Recompute::Choice::kNone ||
      (spec.recompute.choice == Recompute::Choice::kAuto && !spec.memory_limit)) {
    if (!candidate.FitsSerially(false)) return nullptr;
    return std::make_unique<OrderSearch>(candidate);
  }
  return std::make_unique<RecomputeSearch>(candidate);
}

}  // namespace contraflow
