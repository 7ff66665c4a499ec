#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/idle.h"
#include "compiler/simulate/sensitivity.h"
#include "compiler/simulate/simulate.h"
#include "tools/report/standstill.h"

namespace contraflow {

/// A run of a plan, and why its ranks are idle in it.
struct Explanation {
  const Plan& plan;  ///< level comm or above, or not sound
  const CostModel& costs;
  Simulation simulation;
  std::vector<std::vector<Idle>> idle;
  std::vector<Sensitivity> sensitivities;  ///< empty of a measured run
  const BrokenRun* broken = nullptr;       ///< of a plan that is not sound

  /// Idle time of a rank by cause, in the order of IdleCause.
  std::vector<Time> ByCause(int rank) const;
};

/// Predicts a run and finds the costs it follows, by many simulations. Throws Error as Simulate
/// does.
Explanation Explain(const Plan& plan, const CostModel& costs);

/// Explanation of a run that is given, without sensitivities.
Explanation ExplainRun(const Plan& plan, const CostModel& costs, Simulation run);

/// Explanation of a plan that is not sound, up to where it stands; `broken` must outlive it.
Explanation ExplainBroken(const Plan& plan, const CostModel& costs, const BrokenRun& broken);

/// The object of `explain --json`; of a rank with each of its idle times.
Json ExplanationToJson(const Explanation& explanation, int rank = -1);

/// Writes idle time of each rank by cause, a legend, and the costs that the makespan follows.
std::string WriteExplanation(const Explanation& explanation);

/// Writes the table of idle time, and a legend of its causes.
std::string CauseTable(const Explanation& explanation);

/// A predicted run beside a measured one: time, ranks, operations, and the measured idle time by
/// cause.
std::string CompareRuns(const Explanation& predicted, const Explanation& measured);
/// The object of `diff PLAN TRACE --json`; `steps`: of the trace, whose last is the one measured.
Json RunsToJson(const Explanation& predicted, const Explanation& measured, int steps);

/// Idle time of a rank in a sentence, by cause, then its five longest idle times, or `all` in the
/// order of time.
std::string WriteIdle(const Explanation& explanation, int rank, bool all);

/// Text of the work of a rank at a time in ticks, and why; "" past the end of the step.
std::string WriteMoment(const Explanation& explanation, int rank, Time at);

/// Writes the reason of an instruction's start: the chain of waits back to the start of the step,
/// with the idle times on the way.
std::string WriteStart(const Explanation& explanation, InstructionRef at);

}  // namespace contraflow
