#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/spec.h"

namespace contraflow {

/// Least budget of the search of an order of so many chunks (stages times micro-batches), in
/// nanoseconds.
int64_t LeastBudget(int64_t chunks);

/// The same of a search that also makes and judges partitions, or what is recomputed or goes to the
/// host, which takes long whatever the budget: for two chunks a rank, so that all placements have
/// the same.
int64_t LeastBudgetOfChoices(const Spec& spec);

/// The budgets, ascending, with which something is searched one after the other, so that the best
/// of all is never longer with four times the budget: that of the options, a quarter of it and so
/// on, none less than `least`; where it is less itself, four times as much until it is not. Without
/// SearchOptions::monotone, and of a budget of nothing, the budget alone.
std::vector<int64_t> LadderOf(const SearchOptions& options, int64_t least);

}  // namespace contraflow
