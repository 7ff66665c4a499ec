#pragma once

#include "schedules/search/list_scheduler.h"
#include "schedules/search/search.h"

namespace contraflow {

/// Changes the rules of single ranks and stages at random, as long as the schedule gets no longer:
/// stops at `bound`, after `rounds` schedules, or when no more than `leave` of the work is left.
/// `rules` are those of `best`, or any to begin with.
void SearchRules(const SearchProblem& problem, Time bound, int rounds, int64_t leave,
                 SearchWork* work, ListScheduler* scheduler, Rules rules,
                 std::optional<SearchResult>* best);

}  // namespace contraflow
