#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/spec.h"
#include "schedules/search/search_problem.h"
#include "schedules/search/work.h"

namespace contraflow {

/// An order that runs and fits, and where it comes from.
struct SearchResult {
  Order order;
  Time makespan = 0;
  std::string from;  ///< "1f1b", "policy ...", "local search from ..."
};

/// Event-driven list scheduling with one policy after the other (policy.h), until `bound` is
/// reached or all are tried or the work is spent. None if no policy ends within the limit. With
/// `needed` false, where there is an order already, only within the work; else up to four times
/// that, until the first order is found.
std::optional<SearchResult> SearchPolicies(const SearchProblem& problem, Time bound,
                                           SearchWork* work, bool needed = true);

/// Local search on the orders of the ranks: replaces `best` by shorter ones until `bound` is
/// reached or the work is spent. Deterministic for a seed.
void ImproveLocally(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
                    SearchResult* best);

/// ImproveLocally for a part of what is left: ends after `budget` instructions at the latest.
void ImproveWithin(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, SearchResult* best);

/// The micro-batches of a problem in which some differ, in an order for which list schedules get
/// shorter: until no change of it helps, the work is spent or `bound` is reached.
std::vector<int> ArrangeMicrobatches(const SearchProblem& problem, Time bound, SearchWork* work);

/// Their scale in that order.
std::vector<double> ScaleInOrder(const CostModel& costs, const std::vector<int>& order);

/// True if some full backward takes less than its B and its W, so that it matters which of them an
/// order has.
bool JoiningPays(const SearchProblem& problem);

/// Makes full backwards (BW) of B and W, and B and W of full backwards, as long as that makes the
/// order shorter, but for `budget` instructions at most. None if JoiningPays is false.
void JoinBackwards(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work,
                   SearchResult* best);

}  // namespace contraflow
