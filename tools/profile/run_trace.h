#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "tools/profile/profile.h"

namespace contraflow {

/// A larger trace is refused.
inline constexpr int64_t kMostTraceBytes = int64_t{1} << 30;

/// How much of a file tells whether it is a trace.
inline constexpr size_t kTraceHead = size_t{1} << 16;

/// True if a file is a trace rather than a plan: a JSON array, or an object with "traceEvents" in
/// its head.
bool LooksLikeTrace(std::string_view text);

/// One file of a run, for messages, and its text.
struct TraceText {
  std::string place, text;
};

/// When every instruction of a plan ran.
struct MeasuredRun {
  Timeline timeline;
  int steps = 1;                        ///< that the traces have; this is the last of them
  std::vector<std::string> notes = {};  ///< other notes on the times

  /// Its relation to the plan: "step 3 of 3; 1 unit of the plan is taken as 1 ms", or "".
  std::string Note() const;
};

/// A run of a plan from the traces that contraflow-run or contraflow.torch wrote of it, of all
/// ranks or one each; or from those of PyTorch's profiler, one each, whose rank is that of their
/// stages. Throws Error for an instruction of the plan that is not there, for
/// computations of a rank that overlap or have another order than in its program, and for traces of
/// another plan.
MeasuredRun ReadRun(const Plan& plan, const std::vector<TraceText>& traces);

/// No time of an instruction has the rest of a run's time, launches and a busy processor.
/// If the plan, simulated with costs of the run, is more than 1 % off the run's makespan, sets
/// the latency of a message so that it is not, and notes it; or notes that no latency does.
void FitMessages(const Plan& plan, Time makespan, ProfiledCosts* profile);

}  // namespace contraflow
