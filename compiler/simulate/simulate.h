#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Time and memory of one rank.
struct RankFigures {
  Time busy = 0;         ///< of the compute lane
  Time all_to_all = 0;   ///< busy time of the all-to-all lane; 0 where there are no components
  Time exposed = 0;      ///< of those, while the compute lane is idle
  Time bubble = 0;       ///< makespan - busy
  Time first_start = 0;  ///< of its first compute instruction
  Time last_end = 0;     ///< of its last instruction
  /// Chunks held from the start of F to the end of W; one that is recomputed counts during F, and
  /// from R on.
  int peak_activations = 0;
  int64_t peak_bytes = 0;  ///< by the memory costs; 0 where there are none
  int peak_index =
      -1;  ///< the instruction during which the peak (bytes, else activations) is reached
};

/// An instruction of a plan.
struct InstructionRef {
  int rank = 0;
  int index = 0;

  bool operator==(const InstructionRef&) const = default;
};

/// A plan's predicted run.
struct Simulation {
  Timeline timeline;  ///< without ranks where only the figures are kept
  Time makespan = 0;  ///< with a barrier at the end
  Time span = 0;      ///< largest (last end - first start) of a rank
  std::vector<RankFigures> ranks;

  /// sum(bubble) / (ranks * makespan); 0 for an empty plan.
  double bubble_ratio() const;
};

/// Parts of a simulation that are kept: a timeline takes 16 bytes an instruction.
enum class Keep : uint8_t { kTimeline, kFigures };

/// Earliest-start simulation in the timing model of DESIGN section 5: a transfer starts when its
/// producer has ended, takes its comm time and occupies no compute lane; with a bandwidth each
/// directed edge carries one message at a time, first in first out. Levels compute and comm give
/// equal times. If instructions have lanes, each starts when its lane and all it waits for
/// (`after`) have ended. The plan must be sound (Verify); throws Error if it gets stuck, and if the
/// costs do not fit.
Simulation Simulate(const Plan& plan, const CostModel& costs, Keep keep = Keep::kTimeline);

/// Like Simulate, for any plan that Verify executes (FindStandstill), up to the standstill:
/// instructions from `next` on do not run on each rank. They have start and end -1. The makespan is
/// the time of the standstill.
Simulation SimulateUpTo(const Plan& plan, const CostModel& costs, const std::vector<int>& next);

/// A step of a plan as it was measured.
struct MeasuredStep {
  const Timeline& timeline;
  bool reduce_blocks = false;  ///< a rank computes nothing while it takes part in REDUCE (on a CPU)
};

/// Like Simulate, with the durations of a measured step of this plan; only messages use the costs.
Simulation SimulateMeasured(const Plan& plan, const CostModel& costs, const MeasuredStep& measured);

/// Returns a measured run of the plan as a simulation of it: times from the first start on.
Simulation RunOf(const Plan& plan, const CostModel& costs, Timeline measured);

/// A longest chain of instructions in a run of a plan, each waiting for the one before it, from
/// time 0 to the makespan: instructions of all lanes, of a message its SEND. Empty below level
/// comm.
std::vector<InstructionRef> CriticalPath(const Plan& plan, const CostModel& costs,
                                         const Timeline& timeline);

}  // namespace contraflow
