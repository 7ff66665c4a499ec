#pragma once

#include <cstdint>

#include "schedules/search/search.h"

namespace contraflow {

/// ImproveLocally for a part of what is left: ends after `budget` instructions at the latest.
void ImproveWithin(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, SearchResult* best);

}  // namespace contraflow
