#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// What a state has costs of, in the order of CostIndex.
inline constexpr Op kCosted[] = {Op::F, Op::B, Op::W, Op::BW};
inline size_t CostIndex(Op op) { return op == Op::F ? 0 : op == Op::B ? 1 : op == Op::W ? 2 : 3; }

/// One stage of one route. Its chunks run in ascending order of micro-batch, each kind of
/// instruction for itself (all F ascending, all B, all W), so an order need not name micro-batches.
struct RouteStage {
  int route = 0, number = 0, rank = 0;
  int before = -1, after = -1;  ///< stages of the stages before and after it on the route; -1: none
  int count = 0;                ///< micro-batches of the route
  Time hop = 0;       ///< of a message from the stage before it, or of one back; 0 on the same rank
  StageCost cost;     ///< for a micro-batch of scale 1
  int64_t held = 0;   ///< memory from the start of F to the end of B (bytes or activations) ...
  int64_t stash = 0;  ///< ... and of that what stays to the end of W
};

/// The next F, B, W or BW of a stage; an FB is the next forward of `stage` with the next full
/// backward of `back`. R (recompute) comes before the B, BW or FB that needs it.
struct Action {
  Op op = Op::F;
  int32_t stage = -1;
  int32_t back = -1;  ///< FB only

  bool operator==(const Action&) const = default;
};

/// What each rank runs, in order.
using ActionList = std::vector<Action>;
using Order = std::vector<ActionList>;

/// What is searched: a placement, costs and a limit, laid out for speed.
struct SearchProblem {
  Plan frame;  ///< head and routes; no programs
  CostModel costs;
  std::optional<int64_t> limit;             ///< of each rank, in the unit of RouteStage::held
  std::vector<RouteStage> stages;           ///< by route, then stage
  std::vector<std::vector<int>> stages_of;  ///< of each rank, ascending
  bool pairs = false;                       ///< some FB is shorter than its parts
  /// Scale of the k-th micro-batch of each route; empty where all are 1.
  std::vector<std::vector<double>> scale;

  const RouteStage& stage(int index) const { return stages[static_cast<size_t>(index)]; }
  int64_t chunks() const;  ///< stages * micro-batches
  /// Of the k-th F, B, W, BW or R of a stage, or of an FB of the k-th forward and the j-th
  /// backward.
  Time Duration(const Action& action, int k, int j = -1) const;
};

/// `frame` has routes and no programs. The costs must fit it (CheckCosts).
SearchProblem MakeProblem(Plan frame, const CostModel& costs, std::optional<int64_t> limit);

/// A small problem that is like a large one: some `ranks` of it at even distances, with their
/// stages, and micro-batches and memory in proportion.
SearchProblem CoarseProblem(const SearchProblem& problem, int ranks);

/// The plan of an order; its name is the frame's.
Plan ToPlan(const SearchProblem& problem, const Order& order);

/// The order of a compute-level plan with the problem's routes; nothing where a stage does not run
/// its micro-batches in ascending order.
std::optional<Order> ToOrder(const SearchProblem& problem, const Plan& plan);

/// How an order runs: the same figures as Simulate gives for its plan.
struct Evaluation {
  bool runs = false;  ///< no rank waits for ever
  bool fits = false;  ///< no rank ever holds more than the limit
  Time makespan = 0;
  Time span = 0;                ///< largest (last end - first start) of a rank
  std::vector<int64_t> peak;    ///< of each rank
  std::vector<Time> rank_ends;  ///< last end of each rank
};

/// One pass over all actions: linear.
Evaluation Evaluate(const SearchProblem& problem, const Order& order);

}  // namespace contraflow
