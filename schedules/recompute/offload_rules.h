#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// The shortest of what OffloadList makes of these routes by rules that are drawn and then changed,
/// until `bound` is reached or the work is spent; without programs where nothing comes to its end.
/// Deterministic for a seed.
Plan SearchOffloadRules(const Plan& frame, const CostModel& costs,
                        const std::vector<int64_t>& limits, Time bound, uint64_t seed,
                        SearchWork* work);

}  // namespace contraflow
