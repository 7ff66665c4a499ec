#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/plan/spec.h"

namespace contraflow {

/// The smallest memory limit within which `auto` finds an order for the spec, whatever limit that
/// has: what one micro-batch alone holds in the placement where that is least. With every chunk
/// recomputed or none; nothing where the spec has no placement, or its costs do not say what a
/// recomputed chunk holds. In the unit of Spec::memory_limit.
std::optional<int64_t> LeastLimit(const Spec& spec, bool recomputed);

/// Why `auto` does not fit the memory limit of the spec, and what would help.
std::string MemoryAdvice(const Spec& spec);

/// True if the schedule of the spec fits its memory limit with Recompute::Choice::kAuto.
bool FitsRecomputed(const Spec& spec);

}  // namespace contraflow
