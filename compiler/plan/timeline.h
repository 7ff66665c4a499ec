#pragma once

#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// When one instruction ran. SEND and RECV carry the interval of the transfer.
struct Span {
  Time start = 0;
  Time end = 0;

  bool operator==(const Span&) const = default;
};

/// When every instruction of a plan ran: predicted by Simulate or measured by the runtime, one
/// type.
struct Timeline {
  bool measured = false;
  Unit unit = Unit::kUnit;               ///< unit to print times in
  std::vector<std::vector<Span>> ranks;  ///< ranks[r][i] belongs to programs[r][i]

  bool operator==(const Timeline&) const = default;
};

/// End of the last instruction of any rank; 0 for an empty timeline.
Time Makespan(const Timeline& timeline);

}  // namespace contraflow
