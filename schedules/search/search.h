#pragma once

#include <optional>
#include <span>
#include <string>

#include "schedules/search/search_problem.h"
#include "schedules/search/search_work.h"

namespace contraflow {

/// An order that runs and fits, and where it comes from.
struct SearchResult {
  Order order;
  Time makespan = 0;
  std::string from;  ///< "1f1b", "policy ...", "local search from ..."
};

/// Event-driven list scheduling with one policy after the other (schedules/policy.h), until `bound`
/// is reached or all are tried or the work is spent. Nothing where no policy ends within the
/// limit. For any placement and any limit that one micro-batch at a time fits in, it finds some,
/// however much work that takes; with `needed` false, where there is an order already, only within
/// the work.
std::optional<SearchResult> SearchPolicies(const SearchProblem& problem, Time bound, SearchWork* work,
                                    bool needed = true);

/// Local search on the orders of the ranks: replaces `best` by shorter ones until `bound` is
/// reached or the work is spent. Deterministic for a seed.
void ImproveLocally(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
                    SearchResult* best);

/// The best of all for one placement: seeds that run and fit, policies, local search. Never longer
/// than any seed that fits. Nothing if nothing was found that fits.
std::optional<SearchResult> Search(const SearchProblem& problem, std::span<const Plan> seeds, Time bound,
                            const SearchOptions& options, SearchWork* work);

}  // namespace contraflow
