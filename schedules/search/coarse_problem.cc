#include "schedules/search/coarse_problem.h"

#include <algorithm>
#include <utility>

#include "schedules/search/list_scheduler.h"

namespace contraflow {

SearchProblem CoarseProblem(const SearchProblem& problem, int ranks) {
  const Plan& large = problem.frame;
  ranks = std::min(ranks, large.ranks);
  // Of rank r * large / small, for each r, and no other.
  const auto small_rank = [&](int rank) {
    const auto r = static_cast<int>((int64_t{rank} * ranks + large.ranks - 1) / large.ranks);
    return r < ranks && int64_t{r} * large.ranks / ranks == rank ? r : -1;
  };
  Plan frame = large;
  frame.programs.clear();
  frame.ranks = ranks;
  frame.microbatches = 0;
  CostModel costs = problem.costs;
  costs.microbatch_scale.clear();
  costs.stages.clear();
  size_t stages = static_cast<size_t>(large.stages);
  for (size_t route = 0; route < large.routes.size(); ++route) {
    std::vector<int> kept;
    for (size_t s = 0; s < large.routes[route].ranks.size(); ++s) {
      const int rank = small_rank(large.routes[route].ranks[s]);
      if (rank < 0) continue;
      kept.push_back(rank);
      if (route == 0) costs.stages.push_back(problem.costs.stage(static_cast<int>(s)));
    }
    stages = std::min(stages, kept.size());
    frame.routes[route].ranks = std::move(kept);
    const auto all = static_cast<int64_t>(large.routes[route].microbatches.size());
    const auto count = std::max<int64_t>(all > 0 ? 1 : 0, all * ranks / large.ranks);
    frame.routes[route].microbatches.clear();
    for (int64_t k = 0; k < count; ++k) {
      frame.routes[route].microbatches.push_back(frame.microbatches++);
    }
  }
  for (Route& route : frame.routes) route.ranks.resize(stages);
  costs.stages.resize(stages);
  frame.stages = static_cast<int>(stages);
  std::optional<int64_t> limit = problem.limit;
  if (limit) {
    // One micro-batch must fit, so on a rank with many stages not all in proportion.
    int64_t least = 1;
    for (const std::vector<int>& here : problem.stages_of) {
      int64_t sum = 0;
      for (const int stage : here) sum += problem.stages[static_cast<size_t>(stage)].held;
      least = std::max(least, sum);
    }
    const double share = static_cast<double>(ranks) / static_cast<double>(large.ranks);
    limit = std::max(least, static_cast<int64_t>(static_cast<double>(*limit) * share));
  }
  return MakeProblem(std::move(frame), costs, limit);
}

void SortByCoarse(const SearchProblem& coarse, SearchWork* work, std::vector<Policy>* policies) {
  ListScheduler scheduler(coarse);
  std::vector<std::pair<Time, size_t>> order;
  // Those that the budget leaves untried come last, as they were.
  for (size_t i = 0; i < policies->size() && !work->spent(); ++i) {
    const Rules rules = RulesOf(coarse, (*policies)[i]);
    order.emplace_back(scheduler.Run(rules, RankQueue::kNever).value_or(RankQueue::kNever), i);
    work->Spend(scheduler.cost());
  }
  std::sort(order.begin(), order.end());
  for (size_t i = order.size(); i < policies->size(); ++i) order.emplace_back(RankQueue::kNever, i);
  std::vector<Policy> sorted;
  for (const auto& [makespan, i] : order) sorted.push_back((*policies)[i]);
  *policies = std::move(sorted);
}

}  // namespace contraflow
