#pragma once

#include <optional>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// The same problem with `count` micro-batches on each of its routes.
SearchProblem WithCount(const SearchProblem& problem, int count);

/// How an order of a problem with two stages a rank goes on for more micro-batches: in its middle
/// every rank runs, once for each further one, the pair of the first stage's forward with the
/// second's backward and the pair of the opposite, as DualPipe does in its steady phase. Of several
/// places in the middle those with the shortest result; nothing where none runs and fits.
/// `problem` has the further micro-batches already.
std::optional<Order> Extend(const SearchProblem& problem, const Order& order, int further);

}  // namespace contraflow
