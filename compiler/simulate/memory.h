#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Bytes of one rank (of one device, where a rank is a group of them) before anything runs.
struct MemoryFigures {
  /// Of all copies of stages that the rank holds; nothing where the costs do not say.
  std::optional<int64_t> parameters, gradients, optimizer;
  /// By Arena. At level buffer what the runtime allocates; below it what is held at the peak: of
  /// the activations of all chunks the part kept up to B, and the stash kept up to W.
  std::array<int64_t, kArenaCount> arenas{};
  int64_t peak = 0;     ///< sum of `arenas`
  int peak_index = -1;  ///< the instruction during which most is held; -1: nothing ever is
};

/// The figures of every rank, by the memory costs. Below level buffer the accounting is that of
/// Spec::memory_limit: activation_bytes from the start of F, less the stash at the end of B, the
/// stash up to the end of W (all zero where the costs have no activation_bytes). The plan must be
/// sound.
std::vector<MemoryFigures> MemoryOf(const Plan& plan, const CostModel& costs);

/// The figures that are known, for people: "activations 4,096, stashes 0; beside them
/// parameters 1,024".
std::string Breakdown(const MemoryFigures& figures);

}  // namespace contraflow
