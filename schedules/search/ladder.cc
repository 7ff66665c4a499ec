#include "schedules/search/ladder.h"

#include <algorithm>

namespace contraflow {

std::vector<int64_t> LadderOf(const SearchOptions& options, int64_t least) {
  if (!options.monotone || options.budget <= 0) return {options.budget};
  std::vector<int64_t> budgets;
  for (int64_t budget = options.budget; budget > least; budget /= 4) budgets.push_back(budget);
  budgets.push_back(least);
  std::ranges::reverse(budgets);
  return budgets;
}

}  // namespace contraflow
