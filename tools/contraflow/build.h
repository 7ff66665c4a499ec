#pragma once

#include <string>

#include "compiler/lower/lower.h"
#include "schedules/registry.h"
#include "schedules/search_control.h"

namespace contraflow {

/// How far a plan is built, and within what.
struct BuildOptions {
  Level level = Level::kComm;
  Overlap overlap = Overlap::kAll;
  std::string memory_limit = {};  ///< the text of --memory-limit, or ""
  SearchControl control = {};     ///< of what is searched
};

/// The plan a user asked for: generated, held against the memory limit, lowered. Throws Error if
/// the spec does not fit, or if a rank would hold more than the limit: which rank, during which
/// instruction, how much of what, and the least limit that would do.
Plan BuildPlan(Spec spec, const BuildOptions& options, const PassObserver& observer = {});

}  // namespace contraflow
