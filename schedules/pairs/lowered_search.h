#pragma once

#include <optional>
#include <span>

#include "compiler/lower/lower.h"
#include "compiler/plan/spec.h"
#include "schedules/search/search.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

/// Local search for stages with components (costs.moe) that are lowered with Overlap::kAll, where
/// neighbouring chunks share the lanes of a rank and an order takes another time than its chunks
/// one after another: changes a compute order so that the shared run of all ranks is shorter,
/// until the work is spent. No rank holds more than the limit. Deterministic for a seed. Returns
/// the order that it was given where it finds none that is shorter.
Plan ImproveLowered(const Plan& order, const CostModel& costs, std::optional<int64_t> limit,
                    uint64_t seed, SearchWork* work);

/// Lowers a compute order that was found, or a better one: of `found`, of the published orders with
/// the same routes that fit the limit, and of what ImproveLowered makes of the best of them, the
/// one with the shortest simulated step when lowered; the first of equals. So it is never longer
/// than any of them, lowered.
Plan LowerShortest(const Plan& found, std::span<const Plan> published, const CostModel& costs,
                   const LowerOptions& options, const SearchOptions& search,
                   const SearchControl& control = {});

}  // namespace contraflow
