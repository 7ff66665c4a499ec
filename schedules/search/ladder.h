#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/spec.h"

namespace contraflow {

/// Of a search of the smallest problems, in nanoseconds.
constexpr int64_t kLeastBudget = 1'000'000;

/// The budgets, ascending, with which something is searched one after the other, so that the best
/// of all is never longer with four times the budget: those of a quarter of it, and it. The first
/// is always `least`, and so is the only one where the budget is no more. Without
/// SearchOptions::monotone, and of a budget of nothing, the budget alone.
std::vector<int64_t> LadderOf(const SearchOptions& options, int64_t least = kLeastBudget);

}  // namespace contraflow
