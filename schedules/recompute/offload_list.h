#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/rank_memory.h"

namespace contraflow {

/// How one rank decides in OffloadList.
struct OffloadRule {
  int ahead = 1;      ///< cells between the start of F and that of B, at most
  int kept = 0;       ///< of these stay on the device, those whose B comes first
  int waiting = 1;    ///< stashes from which on W goes before B
  int waiting_f = 1;  ///< and before F
  int lead = 4;      ///< RELOAD may begin this many quarters of a copy before its gradient is there
  int patience = 0;  ///< F and W wait for a B that can begin before this many quarters of theirs
  bool reserves = true;  ///< F leaves the room for a RELOAD that is due before it has ended
  bool sure = true;      ///< RELOAD waits until it is known when its gradient comes
};

/// List scheduling of F, B and W together with the copies to the host and back, of which every
/// cell may have its own: whatever a rank and its link can do next, they do when it is possible and
/// the rank's rule does not forbid it. No rank ever holds more than its limit.
class OffloadList {
 public:
  /// `frame`: routes, without layers. Both must outlive it.
  OffloadList(const Plan& frame, const CostModel& costs, const std::vector<int64_t>& limits);

  /// One rule for each rank. False where it comes to a standstill, as it may where not all are
  /// sure: what is back too early takes the memory that its own gradient needs.
  bool Run(const std::vector<OffloadRule>& rules);

  /// Makespan of the last run that came to its end.
  Time makespan() const { return makespan_; }
  std::vector<Program> programs() const;
  /// Work of the last run, in instructions of an order that is evaluated.
  int64_t work() const { return work_; }

 private:
  enum class Where : uint8_t { kNew, kRuns, kHere, kLeaving, kAway, kReturning, kBack, kStash };
  struct Cell {
    Time f = 0, b = 0, w = 0, copy = 0;
    CellBytes memory = {};
    Instruction name = {};  // its stage and micro-batch
    int rank = 0;
    Where where = Where::kNew;
    bool written = false;  // its OFFLOAD stands in the program
    Time input_at = 0, gradient_at = 0;
  };
  /// The forwards of one stage of one route on a rank, in order.
  struct Line {
    const std::vector<int>* microbatches = nullptr;
    int stage = 0;
    size_t next = 0;
  };
  /// The last that has begun of a micro-batch.
  struct Front {
    bool backward = false;
    int stage = -1;
    Time end = 0;
  };
  struct Rank {
    std::vector<Line> lines;  // the last stages first
    std::vector<int> open;    // cells between the start of F and that of B
    std::vector<int> stashes;
    std::vector<int> gone;  // OFFLOADs that have ended and are not written yet
    Program program;
    Op op = Op::F;
    int running = -1, leaving = -1, returning = -1;  // cells
    Time op_end = 0, leaving_end = 0, returning_end = 0;
    int64_t held = 0;
    int64_t freed = 0;  // by the link while F runs
  };

  int At(int stage, int m) const { return stage * frame_.microbatches + m; }
  void Reset();
  void Wake(Time time, int rank) { wakes_.push({time, rank}); }
  void Decide(int r, Time now);
  void Finish(Rank* rank, Time now);
  void StartLeaving(int r, Time now);
  void StartReturning(int r, Time now);
  void StartCompute(int r, Time now);
  bool StartForward(int r, Time now, Time backward);
  bool StartWeight(int r, Time now, Time backward);
  void Start(int r, Op op, int cell, Time now);
  void WriteGone(Rank* rank, size_t* place);
  Time Expected(int cell, Time now) const;

  const Plan& frame_;
  const std::vector<int64_t>& limits_;
  std::vector<const Route*> route_of_;        // by micro-batch
  std::vector<std::vector<Time>> down_, up_;  // see Expected; by micro-batch, of stages
  std::vector<Cell> cells_, fresh_cells_;
  std::vector<Rank> ranks_, fresh_ranks_;
  std::vector<Front> fronts_;
  std::vector<OffloadRule> rules_;
  std::priority_queue<std::pair<Time, int>, std::vector<std::pair<Time, int>>, std::greater<>>
      wakes_;
  size_t left_ = 0;      // W
  bool forced_ = false;  // rules do not count
  Time makespan_ = 0;
  int64_t work_ = 0;
};

}  // namespace contraflow
