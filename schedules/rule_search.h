#pragma once

#include "schedules/list_scheduler.h"
#include "schedules/search.h"

namespace contraflow {

/// Changes the rules of single ranks and lines at random, as long as the schedule gets no longer:
/// stops at `bound`, after `rounds` schedules, or when the work is spent. `rules` are those of
/// `best`, or any to begin with.
void SearchRules(const SearchProblem& problem, Time bound, int rounds, SearchWork* work,
                 ListScheduler* scheduler, Rules rules, std::optional<Found>* best);

}  // namespace contraflow
