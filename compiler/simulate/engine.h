#pragma once

// Walk of programs through time: shared by the simulation of chunks and of lanes, the global order
// and lane sharing. Times are computed, not waited for: a rank goes on until it needs what another
// has not come to, and is taken up again when that one wakes it. So the order in which ranks are
// visited does not matter, and every instruction is looked at once, plus once for each time its
// rank was woken in vain.

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// The rank that runs each cell of a plan; the plan must outlive it.
class Owners {
 public:
  explicit Owners(const Plan& plan) : plan_(plan), route_of_(RouteOfMicrobatch(plan)) {}

  int operator()(int stage, int microbatch) const {
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
    return plan_.routes[route].ranks[static_cast<size_t>(stage)];
  }

 private:
  const Plan& plan_;
  const std::vector<int> route_of_;
};

/// The directed edges between ranks; with a bandwidth each carries one message at a time, first in
/// first out.
class Edges {
 public:
  Edges(const Plan& plan, const CostModel& costs)
      : comm_(costs.comm), free_(plan.programs.size()) {}

  /// When a message between stages s and s + 1 is under way that may leave at `ready`, after those
  /// sent so far.
  Span Send(int from, int to, int s, Time ready) {
    Time start = ready;
    const Time occupancy = comm_.SizeBetween(s).occupancy;
    if (comm_.exclusive()) {
      auto& edges = free_[static_cast<size_t>(from)];
      auto edge =
          std::find_if(edges.begin(), edges.end(), [to](const auto& e) { return e.first == to; });
      if (edge == edges.end()) edge = edges.insert(edges.end(), {to, 0});
      start = std::max(start, edge->second);
      edge->second = start + occupancy;
    }
    return {start, start + occupancy + comm_.latency};
  }

 private:
  const CommCost& comm_;
  std::vector<std::vector<std::pair<int, Time>>> free_;  // by sender: the receiver, and when
};

/// Walks the programs of all ranks; plan and costs must outlive it.
class Engine {
 public:
  explicit Engine(const Plan& plan) : plan_(plan), ranks_(plan.programs.size()) {}

  /// Calls execute(rank, instruction, index) for the instructions of each rank in their order.
  /// If that is false the rank waits at this instruction until somebody wakes it.
  template <typename Execute>
  void Run(Execute execute) {
    for (int r = plan_.ranks - 1; r >= 0; --r) ready_.push_back(r);
    while (!ready_.empty()) {
      const int r = ready_.back();
      ready_.pop_back();
      RankState& rank = ranks_[static_cast<size_t>(r)];
      const Program& program = plan_.program(r);
      rank.waits = false;
      for (; rank.next < program.size(); ++rank.next) {
        if (execute(r, program[rank.next], rank.next)) continue;
        rank.waits = true;
        break;
      }
    }
  }

  void Wake(int r) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    if (!rank.waits) return;
    rank.waits = false;
    ready_.push_back(r);
  }

  /// Place of a rank.
  InstructionRef At(int r) const {
    return {r, static_cast<int>(ranks_[static_cast<size_t>(r)].next)};
  }

  /// Throws Error: a rank never gets past this instruction.
  [[noreturn]] void Stuck(const InstructionRef& at) const;

 private:
  struct RankState {
    size_t next = 0;
    bool waits = false;
  };

  const Plan& plan_;
  std::vector<RankState> ranks_;
  std::vector<int> ready_;  // ranks to walk on with
};

/// How long instructions take: as the costs say or, where there is one, as in a measured step.
class Durations {
 public:
  Durations(const Plan& plan, const CostModel& costs, const MeasuredStep* measured);

  Time Of(const InstructionRef& at, const Instruction& i) const {
    if (measured_ == nullptr) return costs_.Duration(i);
    const auto& spans = measured_->timeline.ranks[static_cast<size_t>(at.rank)];
    const Span& span = spans[static_cast<size_t>(at.index)];
    return span.end - span.start;
  }
  /// Time of the sum over all holders of a stage.
  Time OfReduce(int stage) const {
    return measured_ == nullptr ? costs_.stage(stage).reduce : reduce_[static_cast<size_t>(stage)];
  }
  bool reduce_blocks() const {
    return measured_ != nullptr ? measured_->reduce_blocks : costs_.comm.reduce_blocks;
  }

 private:
  const CostModel& costs_;
  const MeasuredStep* const measured_;
  std::vector<Time> reduce_;  // by stage, of the slowest holder
};

/// The reductions of a step: each starts when all holders of its stage have reached it.
class Reductions {
 public:
  Reductions(const Plan& plan, const Durations& durations)
      : durations_(durations),
        holders_(HoldersOfStage(plan)),
        stages_(holders_.size()),
        arrived_(plan.programs.size(), false) {}

  /// A rank stands at REDUCE, for which it is ready. False if others have not come yet; the last to
  /// come wakes them.
  bool Meet(int rank, int stage, Time ready, Engine* engine, Span* span) {
    Reduction& reduction = stages_[static_cast<size_t>(stage)];
    const std::vector<int>& holders = holders_[static_cast<size_t>(stage)];
    const Time duration = durations_.OfReduce(stage);
    const auto arrived = arrived_.begin() + rank;
    if (!*arrived) {
      *arrived = true;
      reduction.ready = std::max(reduction.ready, ready);
      if (++reduction.arrived == holders.size()) {
        for (const int holder : holders) engine->Wake(holder);
      }
    }
    if (!Done(stage)) return false;
    *arrived = false;
    *span = {reduction.ready, reduction.ready + duration};
    return true;
  }

  bool Done(int stage) const {
    const auto s = static_cast<size_t>(stage);
    return stages_[s].arrived > 0 && stages_[s].arrived == holders_[s].size();
  }
  /// End of a sum that is done.
  Time EndOf(int stage) const {
    return stages_[static_cast<size_t>(stage)].ready + durations_.OfReduce(stage);
  }

 private:
  struct Reduction {
    Time ready = 0;  ///< when the last holder so far has come to it
    size_t arrived = 0;
  };

  const Durations& durations_;
  const std::vector<std::vector<int>> holders_;
  std::vector<Reduction> stages_;
  std::vector<bool> arrived_;  // ranks that are counted at the REDUCE they stand at
};

/// Simulate, for plans whose instructions have lanes; `measured` as for SimulateMeasured, or null.
Simulation SimulateLanes(const Plan& plan, const CostModel& costs, const MeasuredStep* measured);

/// Figures of a rank, given when its instructions ran; bubble is SumUp's. For plans of all levels.
RankFigures FiguresOfSpans(const Plan& plan, const CostModel& costs,
                           const RecomputedCells& recomputed, size_t r,
                           const std::vector<Span>& spans);

/// SimulateUpTo of programs that are cut there already.
Timeline SimulateLanesUpTo(const Plan& plan, const CostModel& costs);

/// Fills in makespan, span and bubbles, from what the ranks did.
void SumUp(Simulation* simulation);

/// Fills in what rank r holds at most (peak_activations, peak_bytes, peak_index) however long its
/// instructions take, of those that have run: an activation from the start of its forward to the
/// end of its last weight part, but for the time in which `recomputed` ones hold only their input.
void FollowActivations(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed,
                       size_t r, const std::vector<Span>& spans, RankFigures* figures);

}  // namespace contraflow
