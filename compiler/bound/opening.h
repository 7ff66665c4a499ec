#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// A stage whose backward may be the first of its rank.
struct Opening {
  Time wait = 0;  ///< from the rank's head to that of the stage
  Time lag = 0;   ///< from the end of its forward to the start of its backward
};

/// What a rank is idle before its first backward, at least, if before that it runs no more than
/// `forwards` forwards of no more than `longest` each and has these stages. Derived where it is
/// computed.
Time IdleOfOpening(const std::vector<Opening>& openings, int64_t forwards, Time longest);

}  // namespace contraflow
