#include "schedules/search/search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/local/local_search.h"
#include "schedules/local/noise.h"
#include "schedules/pairs/pair_search.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/join_backwards.h"
#include "schedules/search/small_start.h"

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

}  // namespace

std::optional<SearchResult> Search(const SearchProblem& problem, std::span<const Plan> seeds, Time bound,
                            const SearchOptions& options, SearchWork* work) {
  work->Enter("schedules");
  std::optional<SearchResult> best = BestSeed(problem, seeds, work);
  if (best) work->Found(best->makespan, bound);
  if (!best || best->makespan > bound) {
    work->Enter("policies");
    std::optional<SearchResult> policies = SearchPolicies(problem, bound, work, !best);
    if (policies && (!best || policies->makespan < best->makespan)) best = std::move(policies);
  }
  if (!best) return best;
  if (problem.pairs) {
    ImprovePairs(problem, bound, options.seed, work->left() / 4 * 3, work, &*best);
  }
  if (problem.frame.routes.size() > 1) {
    const int64_t budget = work->left();
    ImproveWithin(problem, bound, options.seed, budget / 4, work, &*best);
    StartSmall(problem, bound, options, budget / 2, work, &*best);
  }
  if (JoiningPays(problem)) {
    JoinBackwards(problem, bound, work->left() / 8, work, &*best);
    ImproveWithin(problem, bound, options.seed, work->left() / 8 * 7, work, &*best);
    JoinBackwards(problem, bound, work->left(), work, &*best);
  }
  ImproveWithin(problem, bound, options.seed, work->left(), work, &*best);
  if (options.noise > 0) {
    // A second budget, so that the order is as short as without noise.
    SearchWork more(options);
    LowerExpected(problem, seeds, options, &more, &*best);
  }
  return best;
}

}  // namespace contraflow
