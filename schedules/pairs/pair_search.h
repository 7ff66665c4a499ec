#pragma once

#include <cstdint>

#include "schedules/search/search.h"

namespace contraflow {

/// Local search over orders with overlapped pairs: besides moving actions it forms and splits pairs,
/// exchanges what two of them pair, and splits full backwards to run the weight gradient later.
/// Replaces `best` by shorter ones until `bound` is reached or `budget` instructions or all of the
/// work is spent. Deterministic for a seed. Does nothing where IncrementalEvaluator does not take the problem.
void ImprovePairs(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                  SearchWork* work, SearchResult* best);

}  // namespace contraflow
