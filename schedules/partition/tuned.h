#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// Partitions with passes of different sizes, made of others: the first ranks, or the last, have a
/// layer less in one of their stages and one more in another. The total of a rank stays. For one
/// route on which all ranks have as many stages, several; else none.
std::vector<Partition> UnevenPasses(const Plan& frame, const std::vector<Partition>& of);

/// Partitions whose stages have as many layers, or one more in one stretch of them, wherever that
/// may be: small stages in front let all ranks begin soon, small ones after let backwards.
std::vector<Partition> FullStretches(int layers, int stages);

/// A partition and an order for it.
struct TunedPartition {
  Partition partition;
  SearchResult found;
};

/// Problem that a partition makes of the model; nothing where no order of it can fit.
using ProblemOf = std::function<std::optional<SearchProblem>(const Partition&)>;

/// Partition and order together: the rules of a list scheduler and the sizes of stages are changed
/// at random as long as the schedule gets no longer, from several of the `starts`, of which the
/// better half goes on again and again; the order that comes of it is improved by itself.
/// For the routes of UnevenPasses, with plain F, B and W. Stops at `bound`. Deterministic for a
/// seed.
std::optional<TunedPartition> TuneTogether(const Plan& frame, const std::vector<Partition>& starts,
                                           const ProblemOf& problem_of, Time bound, uint64_t seed,
                                           SearchWork* work);

}  // namespace contraflow
