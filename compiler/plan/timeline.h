#pragma once

#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// When one instruction ran, in ticks (plan/cost.h) from the start of the step. SEND and RECV carry
/// the interval of the transfer.
struct Span {
  Time start = 0;
  Time end = 0;

  bool operator==(const Span&) const = default;
};

/// When every instruction of a plan ran: predicted by Simulate or measured by the runtime, one
/// type.
struct Timeline {
  bool measured = false;
  Unit unit = Unit::kUnit;               ///< to print times in; ticks stay ticks
  std::vector<std::vector<Span>> ranks;  ///< ranks[r][i] belongs to programs[r][i]

  bool operator==(const Timeline&) const = default;
};

/// End of the last instruction of any rank, in ticks; 0 for an empty timeline.
inline Time Makespan(const Timeline& timeline) {
  Time makespan = 0;
  for (const std::vector<Span>& rank : timeline.ranks) {
    for (const Span& span : rank) {
      if (span.end > makespan) makespan = span.end;
    }
  }
  return makespan;
}

}  // namespace contraflow
