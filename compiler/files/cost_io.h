#pragma once

#include <string>
#include <string_view>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Reads a cost document, a JSON object: "unit" of all its times; "stage", the costs of every
/// stage, or "stages", a list with those of each ("f", "b", "w" and, unless they follow from these,
/// "bw", "fb", "r", "reduce", "step"); and where they are known "comm", "moe", "overlap", "memory"
/// (in bytes), "microbatch_scale" (a factor each) and "source", in words. `place` (a file name)
/// begins every error message, followed by the JSON path. The text may have comments (// and
/// /* */); costs inside of a plan may not. Strict: refuses unknown and duplicate
/// keys, wrong types, negative, non-finite and missing costs. Costs with "moe" and no "stage" have
/// empty `stages`, for DeriveChunkCosts to fill in as "overlap" (`derived`) says.
CostModel ReadCosts(std::string_view text, const std::string& place);

/// Reads a cost file. Throws Error if it cannot be read or is over its size limit.
CostModel ReadCostFile(const std::string& path);

/// The same document again: fixed key order, ReadCosts(WriteCosts(c)) == c. There must be stage
/// costs or component costs.
std::string WriteCosts(const CostModel& costs);

}  // namespace contraflow
