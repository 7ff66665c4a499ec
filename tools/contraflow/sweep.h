#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/contraflow/comparison.h"

namespace contraflow {

/// One comparison of several.
struct Point {
  Question question;
  std::vector<Row> rows;
};

/// The numbers of "16,32,64", or one; each once, where it is first. Throws UsageError if they are
/// none or too large.
std::vector<int> ParseMicrobatches(const std::string& text);

/// The limits of "1x,1.25x", or one; { "" } for none. Each once, and checked later.
std::vector<std::string> ParseMemoryLimits(const std::string& text);

/// A line for each point with the makespan of each schedule of the same model and the one to take,
/// then the advice on each.
std::string SweepText(std::span<const Point> points, bool costs_given);

/// {"points": [{"microbatches": 16, "memory_limit": "1x", "rows": [...], "advice": {...}}]}
std::string SweepJson(std::span<const Point> points);

std::string SweepCsv(std::span<const Point> points);

}  // namespace contraflow
