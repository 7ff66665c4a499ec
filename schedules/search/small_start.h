#pragma once

#include <cstdint>
#include <vector>

#include "schedules/search/search.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

/// For stages in both directions: searches an order for few micro-batches and for stages that cost
/// alike, where good ones are found soon, carries it over to the actual costs and to all
/// micro-batches (Lengthen), and improves what comes of it. Replaces `best` by a shorter one.
/// Takes no more than about `budget` instructions of the work. Deterministic for a seed.
void StartSmall(const SearchProblem& problem, Time bound, const SearchOptions& options,
                int64_t budget, SearchWork* work, SearchResult* best);

/// A problem like this one with the first `count` micro-batches of each route, numbered anew.
SearchProblem WithFewer(const SearchProblem& problem, int count);

/// Orders of the forwards and backwards of `large`, made from an order of `small` (WithFewer of it)
/// that runs, by repeating on each rank a stretch with as many F and B of every stage: for each
/// length of the stretch that divides what is missing, and for some times at which all ranks begin
/// it, about. They may not run, and may not fit. None where the order has R or FB, or where stages
/// differ in what is missing.
std::vector<Order> Lengthen(const SearchProblem& small, const Order& order,
                            const SearchProblem& large);

}  // namespace contraflow
