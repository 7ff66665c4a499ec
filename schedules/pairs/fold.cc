#include <algorithm>
#include <cstddef>

#include "compiler/plan/error.h"
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

}  // namespace contraflow
