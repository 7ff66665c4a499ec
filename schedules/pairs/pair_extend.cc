#include "schedules/pairs/pair_extend.h"

#include <algorithm>
#include <cstddef>

#include "compiler/plan/error.h"
#include "schedules/pairs/pair_run.h"

namespace contraflow {
namespace {

/// Places in the middle that are tried.
constexpr int kCuts = 16;

/// The steady pairs of a rank after `at` actions of its list.
void Insert(const std::vector<int>& stages, int further, size_t at, ActionList* list) {
  ActionList pairs;
  for (int i = 0; i < further; ++i) {
    pairs.push_back({Op::FB, stages[0], stages[1]});
    pairs.push_back({Op::FB, stages[1], stages[0]});
  }
  list->insert(list->begin() + static_cast<std::ptrdiff_t>(at), pairs.begin(), pairs.end());
}

}  // namespace

SearchProblem WithCount(const SearchProblem& problem, int count) {
  CF_ASSERT(count > 0 && problem.scale.empty());
  SearchProblem other = problem;
  for (RouteStage& stage : other.stages) stage.count = count;
  other.frame.microbatches = 0;
  for (Route& route : other.frame.routes) {
    route.microbatches.clear();
    for (int k = 0; k < count; ++k) route.microbatches.push_back(other.frame.microbatches++);
  }
  return other;
}

std::optional<Order> Extend(const SearchProblem& problem, const Order& order, int further) {
  const int count = problem.stages[0].count - further;
  const SearchProblem shorter = WithCount(problem, count);
  const std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(shorter, order);
  if (!run) return std::nullopt;
  std::optional<Order> best;
  Time least = 0;
  // What starts before a moment stays, what starts later is put off as a whole.
  for (int cut = 0; cut < kCuts; ++cut) {
    const Time moment = run->makespan() / (3 * kCuts) * (kCuts + cut);
    Order longer = order;
    for (size_t r = 0; r < order.size(); ++r) {
      const std::vector<int>& stages = problem.stages_of[r];
      const std::vector<Time>& starts = run->starts(r);
      auto at = static_cast<size_t>(std::lower_bound(starts.begin(), starts.end(), moment) -
                                    starts.begin());
      // In front of a pair as the first of those put in, if there is one near.
      for (size_t i = at; i < std::min(at + 3, order[r].size()); ++i) {
        if (order[r][i].op != Op::FB || order[r][i].back != stages[1]) continue;
        at = i;
        break;
      }
      Insert(stages, further, at, &longer[r]);
    }
    const std::optional<IncrementalEvaluator> tried = IncrementalEvaluator::Of(problem, longer);
    if (!tried || (best && tried->makespan() >= least)) continue;
    least = tried->makespan();
    best = std::move(longer);
  }
  return best;
}

}  // namespace contraflow
