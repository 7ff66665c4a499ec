// Local search finds what a middle rank of a bidirectional placement must do to lose no more than
// its bound says where all instructions last equally long and there are few of them: 2 P
// micro-batches. With costs of several lengths, or more micro-batches, the same order is still the
// best, or nearly, but among many more that are almost as good. So: F, B and W as long as their
// mean, 2 P micro-batches, policies and local search; then that order with the costs as they are;
// then with its middle repeated. After each step another local search.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/search.h"

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

/// Result as for `problem`, where it runs and fits.
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
  // If a rank has waited on purpose, the order alone may be shorter.
  if (best) best->makespan = Evaluate(large, best->order).makespan;
  return best;
}

/// Result of a search of its own for even costs.
std::optional<SearchResult> SearchEven(const SearchProblem& small, const SearchOptions& options,
                                       int64_t budget, SearchWork* work) {
  const SearchProblem even = WithEvenCosts(small);
  const Time bound = BoundOf(even);
  SearchOptions own;
  own.budget = budget * SearchWork::kNanosecondsEach;
  SearchWork own_work(own, {.stop = work->control().stop});
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

// A good order begins in its own way and ends in its own way, and in between does the same again
// and again. So one for many micro-batches is one for few with more of what is between: a stretch
// of a rank's list with q forwards and q backwards of each stage takes q more micro-batches through
// the rank, and leaves it as it was. Weight gradients, which nobody waits for, are left out: they
// go where there is room. Stretches of different ranks that begin at about the same time fit each
// other best; how well shows when the order is run, and a local search closes what gaps they leave.

namespace {

/// Parts of the step at which the start of the repeats is tried.
constexpr int kParts = 16;

/// Forwards and backwards of a rank, and when they start.
struct Guide {
  ActionList list;
  std::vector<Time> starts;
};

/// Begin and end of a stretch of a list.
using Stretch = std::pair<size_t, size_t>;

/// All stretches with q forwards and q backwards of each of this many stages.
std::vector<Stretch> StretchesOf(const ActionList& list, size_t stages_here, size_t stages,
                                 int32_t q) {
  std::vector<Stretch> stretches;
  std::vector<int32_t> counts(2 * stages, 0);
  size_t right = 0;  // how many counts are q
  const auto change = [&](const Action& action, int32_t by) {
    int32_t& count = counts[2 * static_cast<size_t>(action.stage) + (action.op == Op::F ? 0 : 1)];
    right -= count == q;
    count += by;
    right += count == q;
  };
  const size_t wanted = 2 * static_cast<size_t>(q) * stages_here;
  for (size_t end = 0; end < list.size(); ++end) {
    change(list[end], 1);
    if (end >= wanted) change(list[end - wanted], -1);
    if (end + 1 >= wanted && right == 2 * stages_here) {
      stretches.emplace_back(end + 1 - wanted, end + 1);
    }
  }
  return stretches;
}

/// The list with a stretch `times` more often.
ActionList Repeated(const ActionList& list, const Stretch& stretch, int32_t times) {
  const auto begin = list.begin() + static_cast<ptrdiff_t>(stretch.first);
  const auto end = list.begin() + static_cast<ptrdiff_t>(stretch.second);
  ActionList longer(list.begin(), end);
  for (int32_t i = 0; i < times; ++i) longer.insert(longer.end(), begin, end);
  longer.insert(longer.end(), end, list.end());
  return longer;
}

/// Adds the orders in which all ranks repeat what they do from about the same time on, for some
/// such times before the end.
void AddOrders(const SearchProblem& small, const std::vector<Guide>& guides, Time end, int32_t q,
               int32_t times, std::vector<Order>* orders) {
  std::vector<std::vector<Stretch>> stretches;
  for (size_t r = 0; r < guides.size(); ++r) {
    const size_t here = small.stages_of[r].size();
    stretches.push_back(StretchesOf(guides[r].list, here, small.stages.size(), q));
    if (stretches.back().empty() && here > 0) return;
  }
  for (int part = 1; part < kParts; ++part) {
    const Time from = end / kParts * part;
    Order longer(guides.size());
    for (size_t r = 0; r < guides.size(); ++r) {
      if (stretches[r].empty()) continue;
      const auto off = [&](const Stretch& stretch) {
        return std::abs(guides[r].starts[stretch.first] - from);
      };
      const Stretch& nearest =
          *std::min_element(stretches[r].begin(), stretches[r].end(),
                            [&](const Stretch& x, const Stretch& y) { return off(x) < off(y); });
      longer[r] = Repeated(guides[r].list, nearest, times);
    }
    if (orders->empty() || longer != orders->back()) orders->push_back(std::move(longer));
  }
}

}  // namespace

SearchProblem WithFewer(const SearchProblem& problem, int count) {
  Plan frame = problem.frame;
  frame.microbatches = 0;
  for (Route& route : frame.routes) {
    route.microbatches.resize(std::min(route.microbatches.size(), static_cast<size_t>(count)));
    for (int& m : route.microbatches) m = frame.microbatches++;
  }
  CostModel costs = problem.costs;
  costs.microbatch_scale.clear();
  return MakeProblem(std::move(frame), costs, problem.limit);
}

std::vector<Order> Lengthen(const SearchProblem& small, const Order& order,
                            const SearchProblem& large) {
  std::vector<Order> orders;
  const int32_t few = small.stages.front().count;
  const int32_t more = large.stages.front().count - few;
  for (size_t i = 0; i < small.stages.size(); ++i) {
    if (small.stages[i].count != few || large.stages[i].count - few != more) return orders;
  }
  const Timeline timeline = Simulate(ToPlan(small, order), small.costs).timeline;
  std::vector<Guide> guides(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (size_t i = 0; i < order[r].size(); ++i) {
      Action action = order[r][i];
      if (action.op == Op::W) continue;
      if (action.op == Op::BW) action.op = Op::B;
      if (action.op != Op::F && action.op != Op::B) return orders;
      guides[r].list.push_back(action);
      guides[r].starts.push_back(timeline.ranks[r][i].start);
    }
  }
  const Time end = Makespan(timeline);
  for (int32_t q = 1; q <= std::min(few, more); ++q) {
    if (more % q != 0) continue;
    AddOrders(small, guides, end, q, more / q, &orders);
  }
  return orders;
}

}  // namespace contraflow
