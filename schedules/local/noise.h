#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedules/search/noise_draw.h"
#include "schedules/search/search.h"

namespace contraflow {

/// Among orders that are equally long: replaces `best` by a seed or by another that policies or
/// local search on sampled draws make, if its expected makespan is lower on draws that it was not
/// chosen by. The makespan never gets longer. Spends what is left of the work.
void LowerExpected(const SearchProblem& problem, std::span<const Plan> seeds,
                   const SearchOptions& options, SearchWork* work, SearchResult* best);

/// Orders as short as `best`: the seeds', and those that policies (policy.h) make, also for slower
/// messages than there are: what is made early there leaves room for delays. Spends up to `budget`
/// instructions. Returns the few that several draws of noise lengthen least, the best first; `best`
/// is among the candidates.
std::vector<SearchResult> RobustCandidates(const SearchProblem& problem,
                                           std::span<const Plan> seeds, const SearchResult& best,
                                           const SearchOptions& options, int64_t budget,
                                           SearchWork* work);

}  // namespace contraflow
