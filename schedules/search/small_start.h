#pragma once

#include <cstdint>

#include "schedules/search/search.h"

namespace contraflow {

/// For stages in both directions: searches an order for few micro-batches and for stages that cost
/// alike, where good ones are found soon, carries it over to the actual costs and to all
/// micro-batches (longer_order.h), and improves what comes of it. Replaces `best` by a shorter one.
/// Takes no more than about `budget` instructions of the work. Deterministic for a seed.
void StartSmall(const SearchProblem& problem, Time bound, const SearchOptions& options,
                int64_t budget, SearchWork* work, SearchResult* best);

}  // namespace contraflow
