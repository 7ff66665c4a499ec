#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedules/search/search.h"

namespace contraflow {

/// Orders as short as `best`: the seeds', and those that policies (policy.h) make, also for slower
/// messages than there are: what is made early there leaves room for delays. Spends up to `budget`
/// instructions. Of all those it returns the few that several draws of noise lengthen least, the
/// best first; `best` is among the candidates.
std::vector<SearchResult> RobustCandidates(const SearchProblem& problem, std::span<const Plan> seeds,
                                const SearchResult& best, const SearchOptions& options, int64_t budget,
                                SearchWork* work);

}  // namespace contraflow
