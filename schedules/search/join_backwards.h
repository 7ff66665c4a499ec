#pragma once

#include "schedules/search/search.h"
#include "schedules/search/search_problem.h"
#include "schedules/search/search_work.h"

namespace contraflow {

/// True if some full backward takes less than its B and its W, so that it matters which of them an
/// order has.
bool JoiningPays(const SearchProblem& problem);

/// Makes full backwards (BW) of B and W, and B and W of full backwards, as long as that makes the
/// order shorter, but for `budget` instructions at most. Nothing where JoiningPays is false.
void JoinBackwards(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work,
                   SearchResult* best);

}  // namespace contraflow
