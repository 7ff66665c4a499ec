#pragma once

#include <vector>

#include "schedules/search/search_problem.h"

namespace contraflow {

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
