#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/plan/cost.h"

namespace contraflow {

struct Json;
class JsonCursor;

/// Where a searched plan comes from: all that it takes to make it again from its costs, and how far
/// it is from the best possible. Times are of the compute order, in the costs of the plan.
struct Provenance {
  std::string placement;  ///< "linear" "v" "interleaved" "bidirectional"
  std::string from;       ///< "1f1b", "policy ...", "local search from ..."
  /// Stages that the costs were given for, where they were cut or merged to those of the plan.
  std::optional<int> cost_stages;
  /// What each rank may hold of this plan's activations: bytes or, where its costs give none, a
  /// count.
  std::optional<int64_t> memory_limit;
  Time makespan = 0;
  Time bound = 0;      ///< proven for this placement and limit
  int64_t budget = 0;  ///< nanoseconds; evaluated instructions are counted, no clock
  uint64_t seed = 0;   ///< below 2^63
  double noise = 0;
  bool interrupted = false;  ///< ended before its budget, so that it may come out better again

  bool operator==(const Provenance&) const = default;
};

/// "provenance" of a plan document. Strict, as ReadPlan.
Provenance ReadProvenance(const JsonCursor& field, Unit unit);
Json ProvenanceToJson(const Provenance& provenance, Unit unit);

}  // namespace contraflow
