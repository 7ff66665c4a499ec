#include "schedules/search/ladder.h"

#include <algorithm>

#include "schedules/search/search.h"

namespace contraflow {
namespace {

constexpr int64_t kStep = 4;
/// Of the smallest problems.
constexpr int64_t kLeastBudget = 1'000'000;
/// Of an evaluated instruction.
constexpr int64_t kNanosecondsEach = 1'000'000'000 / SearchWork::kPerSecond;

}  // namespace

int64_t LeastBudget(int64_t orders, int64_t chunks) {
  return std::max(kLeastBudget, orders * 3 * chunks * kNanosecondsEach);
}

std::vector<int64_t> LadderOf(const SearchOptions& options, int64_t least) {
  if (!options.monotone || options.budget <= 0) return {options.budget};
  int64_t budget = options.budget;
  while (budget < least) budget *= kStep;
  std::vector<int64_t> budgets = {budget};
  while (budgets.back() / kStep >= least) budgets.push_back(budgets.back() / kStep);
  std::ranges::reverse(budgets);
  return budgets;
}

}  // namespace contraflow
