#include <algorithm>
#include <cstddef>

#include "compiler/plan/error.h"
#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"

namespace contraflow {
namespace {

bool Alike(const RouteStage& a, const RouteStage& b) {
  return a.cost == b.cost && a.count == b.count && a.hop == b.hop && a.number == b.number &&
         a.memory.activation == b.memory.activation && a.memory.stash == b.memory.stash;
}

/// The actions with the stages that `stage` gives for theirs.
template <typename StageOf>
ActionList Renamed(const ActionList& list, const StageOf& stage) {
  ActionList renamed;
  renamed.reserve(list.size());
  for (const Action& action : list) {
    renamed.push_back(
        {action.op, stage(action.stage), action.op == Op::FB ? stage(action.back) : -1});
  }
  return renamed;
}

/// The list with an action after the k-th forward, or backward, of a stage.
ActionList After(const ActionList& list, Action action, int k) {
  size_t at = 0;
  for (int left = k; left > 0; ++at) {
    const bool same = HasForward(action.op)
                          ? HasForward(list[at].op) && list[at].stage == action.stage
                          : HasBackward(list[at].op) && BackStage(list[at]) == action.stage;
    if (same) --left;
  }
  ActionList longer = list;
  longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), action);
  return longer;
}

}  // namespace

std::optional<SearchProblem> Fold(const SearchProblem& problem) {
  const Plan& frame = problem.frame;
  if (frame.routes.size() != 2 || frame.stages != frame.ranks || frame.ranks % 2 != 0) {
    return std::nullopt;
  }
  if (!problem.alike()) return std::nullopt;
  const auto stages = static_cast<size_t>(frame.stages);
  for (size_t s = 0; s < stages; ++s) {
    const RouteStage &down = problem.stages[s], &up = problem.stages[stages + s];
    if (!Alike(down, up) || down.rank != down.number) return std::nullopt;
    if (up.rank != frame.ranks - 1 - up.number) return std::nullopt;
  }
  SearchProblem folded = problem;
  folded.stages.resize(stages);
  folded.frame.ranks = frame.ranks / 2;
  folded.stages_of.assign(static_cast<size_t>(folded.frame.ranks), {});
  folded.frame.routes.pop_back();
  folded.frame.microbatches /= 2;
  folded.frame.programs.resize(folded.stages_of.size());
  for (size_t s = 0; s < stages; ++s) {
    RouteStage& stage = folded.stages[s];
    if (stage.rank >= folded.frame.ranks) stage.rank = frame.ranks - 1 - stage.rank;
    folded.frame.routes[0].ranks[s] = stage.rank;
    folded.stages_of[static_cast<size_t>(stage.rank)].push_back(static_cast<int>(s));
  }
  if (!problem.rooms.empty()) {
    folded.rooms.resize(folded.stages_of.size());
    for (size_t r = 0; r < folded.rooms.size(); ++r) {
      folded.rooms[r] = std::min(problem.Room(r), problem.Room(stages - 1 - r));
    }
  }
  return folded;
}

Order FoldOrder(const SearchProblem& problem, const Order& order) {
  CF_ASSERT(order.size() % 2 == 0);
  Order folded;
  for (size_t r = 0; r < order.size() / 2; ++r) {
    folded.push_back(
        Renamed(order[r], [&](int32_t stage) { return int32_t{problem.stage(stage).number}; }));
  }
  return folded;
}

Order UnfoldOrder(const SearchProblem& problem, const Order& folded) {
  const int32_t stages = problem.frame.stages;
  const auto half = static_cast<int32_t>(folded.size());
  Order order(static_cast<size_t>(stages));
  for (size_t r = 0; r < order.size() / 2; ++r) {
    // On this rank, stages of the first half are on the first route, the others on the second.
    order[r] = Renamed(folded[r], [&](int32_t s) { return s < half ? s : stages + s; });
    order[order.size() - 1 - r] =
        Renamed(folded[r], [&](int32_t s) { return s < half ? stages + s : s; });
  }
  return order;
}

SearchProblem WithCount(const SearchProblem& problem, int count) {
  CF_ASSERT(count > 0 && problem.alike());
  SearchProblem other = problem;
  for (size_t i = 0; i < other.stages.size(); ++i) {
    other.stages[i].count = count;
    other.stages[i].first = i * static_cast<size_t>(count);
  }
  other.frame.microbatches = 0;
  for (Route& route : other.frame.routes) {
    route.microbatches.clear();
    for (int k = 0; k < count; ++k) route.microbatches.push_back(other.frame.microbatches++);
  }
  return other;
}

std::optional<SearchProblem> WithoutOdd(const SearchProblem& problem) {
  const std::vector<Route>& routes = problem.frame.routes;
  if (routes.size() != 2 || !problem.alike()) return std::nullopt;
  const auto [count, most] =
      std::minmax({routes[0].microbatches.size(), routes[1].microbatches.size()});
  if (count == 0 || most != count + 1) return std::nullopt;
  return WithCount(problem, static_cast<int>(count));
}

std::optional<Order> WithOdd(const SearchProblem& problem, const Order& order) {
  const auto up = static_cast<size_t>(problem.frame.stages);
  const int count = std::min(problem.stages[0].count, problem.stages[up].count);
  std::optional<Order> best;
  Time least = 0;
  // The backward is a pair with the k-th forward, or apart: then it is after the k-th or the next.
  for (int place = 0; place < 3 * count; ++place) {
    const int k = 1 + place / 3, form = place % 3;
    Order tried;
    for (size_t r = 0; r < order.size(); ++r) {
      const int32_t stage = *std::ranges::find_if(
          problem.stages_of[r], [&](int s) { return problem.stage(s).count > count; });
      tried.push_back(form == 0 ? After(order[r], {Op::FB, stage, stage}, k)
                                : After(After(order[r], {Op::F, stage}, k), {Op::BW, stage},
                                        std::min(k + form - 1, count)));
    }
    const std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(problem, tried);
    if (!run || (best && run->makespan() >= least)) continue;
    least = run->makespan();
    best = std::move(tried);
  }
  return best;
}

}  // namespace contraflow
