#pragma once

#include <vector>

#include "compiler/plan.h"
#include "compiler/timeline.h"
#include "runtime/backend.h"
#include "runtime/transport.h"

namespace contraflow {

/// Throws Error, with the remedy, unless the plan is of level comm.
void CheckExecutable(const Plan& plan);

/// Walks one rank's program once, in order; nothing but the program decides what is done. A RECV is
/// posted where it stands and waited for by the instruction that consumes it; a SEND is posted
/// where it stands and its bytes are freed once it has left. Returns when each instruction ran,
/// counted from `origin`: compute without the waiting before it, messages as the transport measured
/// them, REDUCE from the arrival of its last holder. An error names the instruction it happened at;
/// Aborted passes as it is.
std::vector<Span> ExecuteProgram(const Plan& plan, int rank, int step, Backend& backend,
                                 Transport& transport, Clock::time_point origin);

}  // namespace contraflow
