#pragma once

#include <string>

#include "compiler/lower.h"
#include "schedules/registry.h"

namespace contraflow {

/// The plan a user asked for: generated, held against the memory limit, lowered. `memory_limit` is
/// the text of --memory-limit or "". Throws Error if the spec does not fit, or if a rank would hold
/// more than the limit: which rank, during which instruction, how much.
Plan BuildPlan(Spec spec, const std::string& memory_limit, Level level,
               const PassObserver& observer = {});

}  // namespace contraflow
