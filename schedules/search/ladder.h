#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/spec.h"

namespace contraflow {

/// What a search may take at least, in nanoseconds: time for so many orders of so many chunks
/// (stages times micro-batches).
int64_t LeastBudget(int64_t orders, int64_t chunks);

/// Orders that a search of one order has time for at least, and one that also makes and judges
/// partitions, or what is recomputed or goes to the host, which takes long whatever the budget.
inline constexpr int64_t kLeastOrders = 64, kLeastOrdersOfChoices = 800;

/// The budgets, ascending, with which something is searched one after the other, so that the best
/// of all is never longer with four times the budget: that of the options, a quarter of it and so
/// on, none less than `least`; where it is less itself, four times as much until it is not. Without
/// SearchOptions::monotone, and of a budget of nothing, the budget alone.
std::vector<int64_t> LadderOf(const SearchOptions& options, int64_t least);

}  // namespace contraflow
