#include "schedules/search/ladder.h"

#include <algorithm>

#include "schedules/search/search.h"

namespace contraflow {
namespace {

constexpr int64_t kStep = 4;
/// Budget of the smallest problems.
constexpr int64_t kLeastBudget = 1'000'000;
/// Orders that a search of one has time for at least, and one that also makes and judges partitions
/// and the like.
constexpr int64_t kLeastOrders = 64, kLeastOrdersOfChoices = 800;

int64_t TimeFor(int64_t orders, int64_t chunks) {
  return std::max(kLeastBudget, orders * 3 * chunks * SearchWork::kNanosecondsEach);
}

}  // namespace

int64_t LeastBudget(int64_t chunks) { return TimeFor(kLeastOrders, chunks); }

int64_t LeastBudgetOfChoices(const Spec& spec) {
  return TimeFor(kLeastOrdersOfChoices, int64_t{2} * spec.ranks * spec.microbatches);
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
