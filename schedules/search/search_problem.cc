#include "schedules/search/search_problem.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/search/candidates.h"
#include "schedules/search/evaluator.h"

namespace contraflow {
namespace {

/// The directed edges between the ranks of neighbouring stages.
void NumberEdges(SearchProblem* problem) {
  std::map<std::pair<int, int>, int> edges;
  for (RouteStage& stage : problem->stages) {
    const auto number = [&](int other) {
      if (other < 0 || problem->stage(other).rank == stage.rank) return -1;
      const std::pair<int, int> edge(stage.rank, problem->stage(other).rank);
      return edges.emplace(edge, static_cast<int>(edges.size())).first->second;
    };
    stage.edge_before = number(stage.before);
    stage.edge_after = number(stage.after);
  }
  problem->edges = edges.size();
}

/// Route and place among the route's micro-batches of each micro-batch.
std::vector<std::pair<int, int>> PlacesOf(const Plan& plan) {
  std::vector<std::pair<int, int>> places(static_cast<size_t>(plan.microbatches), {-1, -1});
  for (size_t route = 0; route < plan.routes.size(); ++route) {
    const std::vector<int>& microbatches = plan.routes[route].microbatches;
    for (size_t k = 0; k < microbatches.size(); ++k) {
      places[static_cast<size_t>(microbatches[k])] = {static_cast<int>(route), static_cast<int>(k)};
    }
  }
  return places;
}

}  // namespace

int64_t ActionCount(const Order& order) {
  int64_t count = 0;
  for (const ActionList& list : order) count += std::ssize(list);
  return count;
}

int64_t SearchProblem::chunks() const {
  return int64_t{frame.stages} * int64_t{frame.microbatches};
}

bool SearchProblem::several() const {
  return std::any_of(stages_of.begin(), stages_of.end(),
                     [](const std::vector<int>& here) { return here.size() > 1; });
}

Time SearchProblem::Duration(const Action& action, int k, int j) const {
  const RouteStage& own = stage(action.stage);
  const auto microbatch = [&](const RouteStage& of, int place) {
    return frame.routes[static_cast<size_t>(of.route)].microbatches[static_cast<size_t>(place)];
  };
  Instruction instruction = CellOp(action.op, own.number, microbatch(own, k));
  if (action.op == Op::FB) {
    const RouteStage& back = stage(action.back);
    instruction = Pair(own.number, instruction.microbatch, back.number, microbatch(back, j));
  }
  return costs.Duration(instruction);
}

std::array<std::vector<Time>, 4> SearchProblem::ChunkDurations() const {
  std::array<std::vector<Time>, 4> durations;
  for (size_t i = 0; i < durations.size(); ++i) {
    durations[i].reserve(static_cast<size_t>(chunks()));
    for (int32_t index = 0; index < std::ssize(stages); ++index) {
      for (int k = 0; k < stage(index).count; ++k) {
        durations[i].push_back(Duration({kCosted[i], index}, k));
      }
    }
  }
  return durations;
}

SearchProblem MakeProblem(Plan frame, const CostModel& costs, std::optional<int64_t> limit) {
  CheckCosts(costs, frame.stages, frame.microbatches);
  SearchProblem problem;
  problem.costs = costs;
  problem.limit = limit;
  problem.stages_of.resize(static_cast<size_t>(frame.ranks));
  const MemoryLimit unit(costs);
  size_t chunks = 0;
  for (size_t route = 0; route < frame.routes.size(); ++route) {
    const std::vector<int>& ranks = frame.routes[route].ranks;
    for (int s = 0; s < frame.stages; ++s) {
      const auto index = static_cast<int>(problem.stages.size());
      RouteStage stage;
      stage.route = static_cast<int>(route);
      stage.number = s;
      stage.rank = ranks[static_cast<size_t>(s)];
      stage.before = s > 0 ? index - 1 : -1;
      stage.after = s + 1 < frame.stages ? index + 1 : -1;
      stage.count = static_cast<int>(frame.routes[route].microbatches.size());
      stage.first = chunks;
      chunks += static_cast<size_t>(stage.count);
      if (s > 0 && problem.stages.back().rank != stage.rank) {
        stage.hop = costs.comm.HopBetween(s - 1);
      }
      stage.cost = costs.stage(s);
      stage.memory = unit.bytes() ? BytesOfCell(costs, s, false) : CellBytes{1, 1, 1};
      problem.pairs = problem.pairs || stage.cost.fb < stage.cost.f + stage.cost.bw;
      problem.stages_of[static_cast<size_t>(stage.rank)].push_back(index);
      problem.stages.push_back(stage);
    }
  }
  if (costs.comm.exclusive()) NumberEdges(&problem);
  frame.programs.assign(static_cast<size_t>(frame.ranks), {});
  problem.frame = std::move(frame);
  return problem;
}

SearchProblem MakeProblem(const Candidate& candidate) {
  const Spec& spec = candidate.spec;
  SearchProblem problem = MakeProblem(candidate.frame, spec.costs, spec.memory_limit);
  problem.rooms = candidate.limits;
  return problem;
}

Plan ToPlan(const SearchProblem& problem, const Order& order) {
  CF_ASSERT(order.size() == problem.stages_of.size());
  Plan plan = problem.frame;
  StageCounts counts(problem.stages.size());
  const auto microbatch = [&](const RouteStage& stage, int k) {
    CF_ASSERT(k < stage.count);
    return plan.routes[static_cast<size_t>(stage.route)].microbatches[static_cast<size_t>(k)];
  };
  for (size_t r = 0; r < order.size(); ++r) {
    Program& program = plan.programs[r];
    program.reserve(order[r].size());
    for (const Action& action : order[r]) {
      const RouteStage &stage = problem.stage(action.stage),
                       &back = problem.stage(BackStage(action));
      const auto [f, b, w] = counts[BackStage(action)];
      if (action.op == Op::FB) {
        program.push_back(Pair(stage.number, microbatch(stage, counts[action.stage].f), back.number,
                               microbatch(back, b)));
      } else {
        const int k = HasForward(action.op) ? f : HasBackward(action.op) ? b : w;
        program.push_back(CellOp(action.op, stage.number, microbatch(stage, k)));
      }
      counts.Pass(action);
    }
  }
  return plan;
}

std::optional<Order> ToOrder(const SearchProblem& problem, const Plan& plan) {
  CF_ASSERT(plan.routes == problem.frame.routes && plan.level == Level::kCompute);
  const std::vector<std::pair<int, int>> places = PlacesOf(plan);
  StageCounts counts(problem.stages.size());
  // The stage of a chunk and which of its micro-batches it is.
  const auto find = [&](int stage, int microbatch) {
    const auto [route, k] = places[static_cast<size_t>(microbatch)];
    return std::pair(static_cast<int32_t>(route * plan.stages + stage), k);
  };
  Order order(plan.programs.size());
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    order[r].reserve(plan.programs[r].size());
    for (const Instruction& i : plan.programs[r]) {
      const auto [stage, k] = find(i.stage, i.microbatch);
      const auto [back, j] = find(BackStage(i), BackMicrobatch(i));
      if (HasForward(i.op) && counts[stage].f != k) return std::nullopt;
      if (HasBackward(i.op) && counts[back].b != j) return std::nullopt;
      if (HasWeight(i.op) && counts[back].w != j) return std::nullopt;
      order[r].push_back({i.op, stage, i.op == Op::FB ? back : -1});
      counts.Pass(order[r].back());
    }
  }
  return order;
}

Evaluation Evaluate(const SearchProblem& problem, const Order& order) {
  return Evaluator(problem).Run(order);
}

}  // namespace contraflow
