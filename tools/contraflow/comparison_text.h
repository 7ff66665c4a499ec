#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/contraflow/comparison.h"

namespace contraflow {

/// The table of one comparison, why schedules are rejected, the advice, and what the columns mean.
/// `costs_given` is false where they are the unit costs nobody asked for.
std::string ComparisonText(const Question& question, std::span<const Row> rows, bool costs_given);

/// One row of `compare --json`: the object of `simulate --json`, or "rejected".
std::unique_ptr<JsonObject> RowToJson(const Row& row, const Question& question);

/// "rows" and "advice" of a comparison.
std::unique_ptr<JsonObject> ComparisonToJson(const Question& question, std::span<const Row> rows);

/// Of one comparison or several, one line a row: the same figures as in JSON, no ranks.
std::string ComparisonCsvHeader();
std::string ComparisonCsv(const Question& question, std::span<const Row> rows);

}  // namespace contraflow
