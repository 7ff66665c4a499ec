#include "schedules/auto/search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/pairs/pairs.h"
#include "schedules/search/evaluator.h"

namespace contraflow {
namespace {

/// The shortest of the seeds that run and fit; the first of equals.
std::optional<SearchResult> BestSeed(const SearchProblem& problem, std::span<const Plan> seeds,
                                     SearchWork* work) {
  std::optional<SearchResult> best;
  Evaluator evaluator(problem);
  for (const Plan& seed : seeds) {
    std::optional<Order> order = ToOrder(problem, seed);
    if (!order) continue;
    const Evaluation& evaluation = evaluator.Run(*order);
    work->Spend(InstructionCount(seed));
    if (!evaluation.runs || !evaluation.fits) continue;
    if (best && best->makespan <= evaluation.makespan) continue;
    best = SearchResult{std::move(*order), evaluation.makespan, seed.schedule};
  }
  return best;
}

/// Local search of all kinds but of pairs, for this much of the work.
void ImproveFurther(const SearchProblem& problem, Time bound, const SearchOptions& options,
                    int64_t budget, SearchWork* work, SearchResult* best) {
  const int64_t end = work->left() - budget;
  const auto left = [&] { return std::max<int64_t>(work->left() - end, 0); };
  if (JoiningPays(problem)) {
    JoinBackwards(problem, bound, left() / 8, work, best);
    ImproveWithin(problem, bound, options.seed, left() / 8 * 7, work, best);
    JoinBackwards(problem, bound, left(), work, best);
  }
  ImproveWithin(problem, bound, options.seed, left(), work, best);
}

}  // namespace

std::optional<SearchResult> Search(const SearchProblem& problem, std::span<const Plan> seeds,
                                   Time bound, const SearchOptions& options, SearchWork* work) {
  work->Enter("schedules");
  std::optional<SearchResult> best = BestSeed(problem, seeds, work);
  if (best) work->Found(best->makespan, bound);
  if (!best || best->makespan > bound) {
    work->Enter("policies");
    std::optional<SearchResult> policies = SearchPolicies(problem, bound, work, !best);
    if (policies && (!best || policies->makespan < best->makespan)) best = std::move(policies);
  }
  if (!best) return best;
  std::optional<SearchResult> other;
  if (problem.pairs) {
    other = ImprovePairs(problem, bound, options.seed, work->left() / 4 * 3, work, &*best);
  }
  const int64_t budget = other ? work->left() / 3 * 2 : work->left();
  ImproveFurther(problem, bound, options, budget, work, &*best);
  if (other && other->makespan < best->makespan) {
    best = std::move(other);
    ImproveFurther(problem, bound, options, work->left(), work, &*best);
  }
  return best;
}

}  // namespace contraflow
