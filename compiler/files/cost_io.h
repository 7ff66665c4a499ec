#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Repairs of measured costs: noise, and timers without b and w.
struct CostMending {
  double split = 0.5;  ///< share of b in a full backward that is given without its parts
  /// Assumptions made, each with place and path: a figure shorter than a part of it (MendNoise), a
  /// full backward divided.
  std::vector<std::string> assumed = {};
};

/// Divides the full backward into b and w; says so in words.
std::string DivideBackward(double split, Unit unit, StageCost* cost);

/// Reads a cost document, a JSON object: "unit" of all its times; "stage", the costs of every
/// stage, or "stages", a list with those of each ("f", "b", "w" and, unless they follow from these,
/// "bw", "fb", "r", "reduce", "step"); and where they are known "comm", "moe", "overlap", "memory"
/// (in bytes), "microbatch_scale" (a factor each) and "source", in words. `place` (a file name)
/// begins every error message, followed by the JSON path. The text may have comments (// and
/// /* */); costs inside of a plan may not. Strict: refuses unknown and duplicate
/// keys, wrong types, negative, non-finite and missing costs. Costs with "moe" and no "stage" have
/// empty `stages`, for DeriveChunkCosts to fill in as "overlap" (`derived`) says. With `mending`,
/// what that says is mended and not refused.
CostModel ReadCosts(std::string_view text, const std::string& place,
                    CostMending* mending = nullptr);

/// Reads a cost file. Throws Error if it cannot be read or is over its size limit.
CostModel ReadCostFile(const std::string& path, CostMending* mending = nullptr);

/// The same document again: fixed key order, ReadCosts(WriteCosts(c)) == c. There must be stage
/// costs or component costs.
std::string WriteCosts(const CostModel& costs);

}  // namespace contraflow
