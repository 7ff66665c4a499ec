#pragma once

#include <string>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Runs a comm-level plan with opaque stages and without groups under these semantics, the slow and
/// obvious way: each rank computes what it can and posts messages into its queues, whose heads meet
/// first in first out whatever they carry, and this is repeated until nothing moves. Tracks what
/// every message carries. "" if each weight gradient of each micro-batch was made of the right
/// values, once, and every stage stepped once after them; else what went wrong first. Shares no
/// code with Verify.
std::string RunQueues(const Plan& plan, Semantics semantics);

}  // namespace contraflow
