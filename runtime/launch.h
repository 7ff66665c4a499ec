#pragma once

#include <span>
#include <vector>

#include "compiler/plan.h"
#include "compiler/timeline.h"
#include "runtime/backend.h"
#include "runtime/transport.h"

namespace contraflow {

/// One rank of one replica.
struct Worker {
  int replica = 0;
  int rank = 0;
  Backend* backend = nullptr;
  Transport* transport = nullptr;
};

/// Most threads of one run.
inline constexpr int kMaxThreads = 1024;

/// Runs one step: every worker's program once, each in a thread of its own. Returns when all have
/// ended, with the spans of each worker's instructions, counted from the start of the step. If one
/// fails, all others are aborted and joined, and the first error is thrown again; it names rank and
/// instruction. Then backends and transports are good for nothing but their destruction.
std::vector<std::vector<Span>> LaunchStep(const Plan& plan, int step,
                                          std::span<const Worker> workers);

}  // namespace contraflow
