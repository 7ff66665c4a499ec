#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/plan/spec.h"

namespace contraflow {

/// Smallest limit `auto` can meet for the spec, whose own limit does not matter, with as much as
/// `recompute` lets run again: the peak of one micro-batch in its cheapest placement. None if the
/// spec has no placement, or its costs do not say what a recomputed chunk holds. In the unit of
/// Spec::memory_limit.
std::optional<int64_t> LeastLimit(const Spec& spec, const Recompute& recompute);

/// Why `auto` does not fit the memory limit of the spec, and what would help.
std::string MemoryAdvice(const Spec& spec);

/// Advice that may make the spec fit its devices, where it does not: "use more `ranks`, ..".
/// `activations`: false if it would not fit without any.
std::string DeviceAdvice(const Spec& spec, bool activations = true);

}  // namespace contraflow
