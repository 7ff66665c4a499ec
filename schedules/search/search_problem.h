#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/rank_memory.h"

namespace contraflow {

struct Candidate;

/// Operations whose costs a state has, in the order of CostIndex.
inline constexpr Op kCosted[] = {Op::F, Op::B, Op::W, Op::BW};
inline size_t CostIndex(Op op) { return op == Op::F ? 0 : op == Op::B ? 1 : op == Op::W ? 2 : 3; }

/// One stage of one route. Its chunks run in ascending order of micro-batch, each kind of
/// instruction for itself (all F ascending, all B, all W), so an order need not name micro-batches.
struct RouteStage {
  int route = 0, number = 0, rank = 0;
  int before = -1, after = -1;  ///< stages of the stages before and after it on the route; -1: none
  int edge_before = -1, edge_after = -1;  ///< directed edges to these; -1: none, or links are free
  int count = 0;                          ///< micro-batches of the route
  size_t first = 0;                       ///< of its chunks, in tables by chunk
  Time hop = 0;    ///< of a message from the stage before it, or of one back; 0 on the same rank
  StageCost cost;  ///< for a micro-batch of scale 1
  CellBytes memory = {};  ///< of a chunk, in bytes or activations
};

/// The next F, B, W or BW of a stage; an FB is the next forward of `stage` with the next full
/// backward of `back`. R (recompute) comes before the B, BW or FB that needs it.
struct Action {
  Op op = Op::F;
  int32_t stage = -1;
  int32_t back = -1;  ///< FB only

  bool operator==(const Action&) const = default;
};

/// The stage of the backward part: of an FB its second one, else the only one.
inline int32_t BackStage(const Action& action) {
  return action.op == Op::FB ? action.back : action.stage;
}

/// Actions of a rank, in order.
using ActionList = std::vector<Action>;
using Order = std::vector<ActionList>;

/// Actions of all ranks.
int64_t ActionCount(const Order& order);

/// How many F, B and W of each stage have come, where lists of actions are gone through.
class StageCounts {
 public:
  struct Counts {
    int32_t f = 0, b = 0, w = 0;
  };

  explicit StageCounts(size_t stages) : counts_(stages) {}

  const Counts& operator[](int32_t stage) const { return counts_[static_cast<size_t>(stage)]; }
  void Reset() { counts_.assign(counts_.size(), {}); }
  void Pass(const Action& action) {
    counts_[static_cast<size_t>(action.stage)].f += HasForward(action.op);
    Counts& back = counts_[static_cast<size_t>(BackStage(action))];
    back.b += HasBackward(action.op);
    back.w += HasWeight(action.op);
  }

 private:
  std::vector<Counts> counts_;
};

/// Subject of a search: a placement, costs and a limit, laid out for speed.
struct SearchProblem {
  Plan frame;  ///< head and routes; no programs
  CostModel costs;
  std::optional<int64_t> limit;    ///< of the roomiest rank, in the unit of RouteStage::memory
  std::vector<int64_t> rooms;      ///< limits of the ranks where these differ
  std::vector<RouteStage> stages;  ///< by route, then stage
  std::vector<std::vector<int>> stages_of;  ///< of each rank, ascending
  size_t edges = 0;                         ///< that messages queue on
  bool pairs = false;                       ///< some FB is shorter than its parts

  const RouteStage& stage(int index) const { return stages[static_cast<size_t>(index)]; }
  int64_t chunks() const;  ///< stages * micro-batches
  /// Place of the k-th chunk of a stage in tables by chunk.
  size_t Chunk(int index, int k) const { return stage(index).first + static_cast<size_t>(k); }
  int64_t Room(size_t rank) const {
    return rooms.empty() ? limit.value_or(std::numeric_limits<int64_t>::max() / 2) : rooms[rank];
  }
  bool alike() const { return costs.microbatch_scale.empty(); }  ///< all micro-batches
  /// Some rank has several stages.
  bool several() const;
  /// Memory that an action takes when it starts, and gives back when it ends.
  int64_t Taken(const Action& action) const {
    return contraflow::Taken(action.op, stage(action.stage).memory);
  }
  int64_t Given(const Action& action) const {
    return contraflow::Given(action.op, stage(action.stage).memory,
                             stage(BackStage(action)).memory);
  }
  /// Duration of the k-th F, B, W, BW or R of a stage, or of an FB of the k-th forward and the j-th
  /// backward.
  Time Duration(const Action& action, int k, int j = -1) const;
  /// Durations of F, B, W and BW (kCosted), each by chunk.
  std::array<std::vector<Time>, 4> ChunkDurations() const;
};

/// `frame` has routes and no programs. The costs must fit it (CheckCosts).
SearchProblem MakeProblem(Plan frame, const CostModel& costs, std::optional<int64_t> limit);
/// The same of a candidate, within the limit of each of its ranks.
SearchProblem MakeProblem(const Candidate& candidate);

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
