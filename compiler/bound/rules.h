#pragma once

#include <cstdint>
#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {

/// `from` of a stage, k - shift, ends before F of another stage, k, starts.
struct Precedence {
  Pass from;
  size_t from_stage, to_stage;
  size_t shift;
  Time delay;  ///< from the start of the one to the start of the other
};

/// Before F of stages[j] of one rank, and after its B, come all but so many of what the first j + 1
/// stages have done before, or have to do after.
struct Together {
  std::vector<size_t> stages;  ///< the first j + 1
  size_t backwards = 0;        ///< that need not have ended, and forwards that need not come after
  size_t rests = 0;            ///< that need not have ended; without a stash none need
};

/// What a memory limit says about the positions of one route; nothing without a limit.
struct MemoryRules {
  std::vector<Precedence> precedences;
  std::vector<std::vector<Precedence>> before;  ///< the same, by the stage whose F comes after
  std::vector<Together> together;               ///< by the last of its stages
};

MemoryRules RulesOf(const BoundInput& input, const RouteWork& route);

}  // namespace contraflow
