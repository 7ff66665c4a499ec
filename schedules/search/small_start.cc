// Local search finds what a middle rank of a bidirectional placement must do to lose no more than
// its bound says where all instructions last equally long and there are few of them: 2 P
// micro-batches. With costs of several lengths, or more micro-batches, the same order is still the
// best, or nearly, but among many more that are almost as good. So: F, B and W as long as their
// mean, 2 P micro-batches, policies and local search; then that order with the costs as they are;
// then with its middle repeated. After each step another local search.

#include "schedules/search/small_start.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "schedules/local/local_search.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/longer_order.h"

namespace contraflow {
namespace {

/// The problem with F, B and W of each stage as long as their mean.
SearchProblem WithEvenCosts(const SearchProblem& problem) {
  CostModel costs = problem.costs;
  for (StageCost& cost : costs.stages) {
    const Time mean = (cost.f + cost.b + cost.w) / 3;
    cost.f = cost.b = cost.w = mean;
    cost.bw = 2 * mean;
    cost.fb = 3 * mean;
  }
  return MakeProblem(problem.frame, costs, problem.limit);
}

Time BoundOf(const SearchProblem& problem) {
  return ProveBound(problem.frame, problem.costs, problem.limit).value;
}

/// As of `problem`, where it runs and fits.
std::optional<SearchResult> Carried(const SearchProblem& problem, Order order, SearchWork* work) {
  work->Spend(3 * problem.chunks());
  const Evaluation evaluation = Evaluate(problem, order);
  if (!evaluation.runs || !evaluation.fits) return std::nullopt;
  return SearchResult{std::move(order), evaluation.makespan, ""};
}

/// The best of those made longer.
std::optional<SearchResult> Longer(const SearchProblem& small, const Order& order,
                            const SearchProblem& large, SearchWork* work) {
  std::optional<SearchResult> best;
  ListScheduler scheduler(large);
  Time below = RankQueue::kNever;
  for (const Order& guide : Lengthen(small, order, large)) {
    for (const int fill : {0, 50, 100}) {
      Policy policy;
      policy.fill = fill;
      const std::optional<Time> makespan =
          scheduler.RunInOrder(guide, RulesOf(large, policy), below);
      work->Spend(scheduler.cost());
      if (!makespan) continue;
      below = *makespan;
      best = SearchResult{scheduler.TakeOrder(), *makespan, ""};
    }
  }
  // Where a rank has waited on purpose, the order alone may be shorter.
  if (best) best->makespan = Evaluate(large, best->order).makespan;
  return best;
}

/// What a search of its own finds for even costs.
std::optional<SearchResult> SearchEven(const SearchProblem& small, const SearchOptions& options,
                                int64_t budget, SearchWork* work) {
  const SearchProblem even = WithEvenCosts(small);
  const Time bound = BoundOf(even);
  SearchOptions own;
  own.budget = budget * (1'000'000'000 / SearchWork::kPerSecond);
  own.stop = options.stop;
  SearchWork own_work(own);
  std::optional<SearchResult> found = SearchPolicies(even, bound, &own_work, false);
  if (found) ImproveWithin(even, bound, options.seed, own_work.left(), &own_work, &*found);
  work->Spend(budget - own_work.left());
  return found;
}

}  // namespace

void StartSmall(const SearchProblem& problem, Time bound, const SearchOptions& options,
                int64_t budget, SearchWork* work, SearchResult* best) {
  if (best->makespan <= bound || problem.pairs || problem.frame.routes.size() < 2) return;
  const int count = problem.stages.front().count, few = std::min(count, problem.frame.ranks);
  const bool alike = std::all_of(problem.stages.begin(), problem.stages.end(),
                                 [count](const RouteStage& stage) { return stage.count == count; });
  if (!alike || count == 0) return;
  work->Enter("few micro-batches");
  const int64_t part = budget / 3, end = work->left() - budget;
  const SearchProblem small = WithFewer(problem, few);
  std::optional<SearchResult> found = SearchEven(small, options, part, work);
  if (found) found = Carried(small, std::move(found->order), work);
  if (!found) return;
  ImproveWithin(small, BoundOf(small), options.seed, part, work, &*found);
  found = few == count ? Carried(problem, std::move(found->order), work)
                       : Longer(small, found->order, problem, work);
  if (!found) return;
  ImproveWithin(problem, bound, options.seed, work->left() - end, work, &*found);
  if (found->makespan >= best->makespan) return;
  *best = std::move(*found);
  best->from = "few micro-batches of even costs";
}

}  // namespace contraflow
