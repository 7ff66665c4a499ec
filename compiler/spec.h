#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/cost.h"

namespace contraflow {

/// What a schedule is generated for.
struct Spec {
  std::string schedule;
  int ranks = 0;
  int microbatches = 0;
  int chunks = 0;  ///< stages a rank holds; 0: the schedule's own default
  int data_parallel = 1;
  int expert_parallel = 1;
  CostModel costs;
  /// Bytes of activations a rank may hold; where the costs give no activation_bytes, activations.
  std::optional<int64_t> memory_limit;
};

/// "BYTES" or "Nx" (N times what 1F1B's first rank holds: P activations of a whole rank) for this
/// spec. Throws Error if malformed, not positive or too large.
int64_t ParseMemoryLimit(const std::string& text, const Spec& spec, int stages);

/// Throws Error if ranks, micro-batches, chunks, data_parallel or expert_parallel are out of range:
/// what is wrong with any schedule. What a certain schedule cannot do is Schedule::reject's to say.
void CheckSpec(const Spec& spec);

}  // namespace contraflow
