#pragma once

#include <string>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

// The same questions as Verify and Simulate answer, answered the slow and obvious way. They share
// no code with them.

/// Runs a plan symbolically: every rank walks its list, messages meet by rendezvous first in first
/// out on each edge, groups are posted together, REDUCE meets all holders; at level compute, which
/// has no messages, a rank waits until another has made its input. Tracks which activations,
/// gradients and weight gradients exist where. "" if every copy of every stage ends with the weight
/// gradients of its micro-batches, each once, and from level comm on summed where there are several
/// copies, and one optimizer step; else what went wrong first.
std::string RunSymbolically(const Plan& plan);

/// When every instruction of a sound comm-level plan runs: all times start at 0 and each is raised
/// to what its inputs allow until nothing changes any more.
Timeline FixpointTimes(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
