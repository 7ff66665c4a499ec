#pragma once

#include <optional>
#include <span>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// The best of all for one placement: seeds that run and fit, policies, local search. Never longer
/// than any seed that fits. None if no plan fits.
std::optional<SearchResult> Search(const SearchProblem& problem, std::span<const Plan> seeds,
                                   Time bound, const SearchOptions& options, SearchWork* work);

}  // namespace contraflow
