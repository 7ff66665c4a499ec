#pragma once

#include <cstdint>
#include <optional>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// A compute order that recomputes, with its instructions moved within their ranks: F, R, B and W
/// of every chunk stay in order, and so do the micro-batches of every stage. With `freely` single
/// cells come to be recomputed or cease to be, with the part that their stage has. The shortest
/// that holds no more than `limit` on any rank, as MemoryLimit counts, after `budget` instructions
/// of the work or at `bound`; never longer than `plan`, which fits. Where messages queue on links,
/// `plan` itself. Deterministic for a seed.
Plan ImproveRecomputed(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
                       bool freely, Time bound, uint64_t seed, int64_t budget, SearchWork* work);

}  // namespace contraflow
