#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Why a rank's compute lane is idle.
enum class IdleCause : uint8_t {
  kFill,        ///< its first input is still being computed elsewhere
  kDrain,       ///< the same, or the end of the step, when it has no forward left to run
  kDependency,  ///< its input is still being computed elsewhere, in between
  kLink,        ///< its input is on its way from another rank
  kQueue,       ///< its input is made, and the message waits in a queue of a rank
  kAllToAll,    ///< an all-to-all runs, on this rank or on the one that it waits for
  kHost,        ///< a copy to or from the memory of the host runs
  kReduce,      ///< gradients are being summed
  kMemory,      ///< a forward could run, but would hold more than the rank ever does
  kOrder,       ///< something could run that the plan runs later
  kOverhead,    ///< nothing was missing; measured runs only
  kStandstill,  ///< it goes no further; plans that are not sound only
};
inline constexpr int kIdleCauses = static_cast<int>(IdleCause::kStandstill) + 1;

/// "fill" "drain" "dependency" "link" "queue" "all-to-all" "host" "reduce" "memory" "order"
/// "overhead" "standstill"
std::string_view Name(IdleCause cause);
/// Meaning, for a legend.
std::string_view Meaning(IdleCause cause);

/// A time in which the compute lane of a rank is idle, all of it for one reason.
struct Idle {
  Span when;
  IdleCause cause = IdleCause::kFill;
  int next = -1;  ///< the instruction that the lane runs next, or stands at; -1: none
  /// Instruction that ran meanwhile; for kMemory and kOrder one that could have run, for kOverhead
  /// one that began late. Rank -1 at the end of the step.
  InstructionRef because = {-1, -1};
};

/// Every idle time of every rank, ascending: from 0 to the makespan, which together are the bubble
/// of that rank exactly. The chain of what the next instruction waited for (Waits) tells what went
/// on at each moment of it. Plans of level comm and above, and any that SimulateUpTo ran.
/// `simulation` is a run of the plan with these costs, timeline included.
std::vector<std::vector<Idle>> AttributeIdle(const Plan& plan, const CostModel& costs,
                                             const Simulation& simulation);

}  // namespace contraflow
