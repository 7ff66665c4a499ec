#pragma once

#include <vector>

#include "schedules/search/policy.h"
#include "schedules/search/search_problem.h"
#include "schedules/search/search_work.h"

namespace contraflow {

/// A small problem that is like a large one: some `ranks` of it at even distances, with their
/// stages, and micro-batches and memory in proportion.
SearchProblem CoarseProblem(const SearchProblem& problem, int ranks);

/// The policies with the shortest schedules of the coarse first; of equals the first.
void SortByCoarse(const SearchProblem& coarse, SearchWork* work, std::vector<Policy>* policies);

}  // namespace contraflow
