#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "schedules/compare.h"
#include "schedules/front.h"
#include "tools/cli/compare_flags.h"
#include "tools/report/text.h"

namespace contraflow {

/// The schedules that are not rejected, within 100 columns. `wide` adds every figure that rows
/// have.
Table ComparisonTable(const CompareRequest& request, std::span<const CompareRow> rows,
                      bool wide = false);

/// The smallest first, rejected rows last. Throws UsageError for a column that has no order.
void SortRows(const std::string& column, std::vector<CompareRow>* rows);

/// "1.00x"
std::string FormatMultiple(double value);

/// The advice in one line or, with a schedule to take, two.
std::string AdviceLines(const Advice& advice);

/// True where the costs list stages that differ.
bool ListsUnlikeStages(const CostModel& costs);

/// Size, costs and memory, a line each; the number of micro-batches where all rows have `one`.
std::string ComparedHead(const CompareRequest& request, bool costs_given, bool one);

/// Says where published rows with F&B pairs are compared without their overlap; "" elsewhere.
std::string NoteOnPairs(const CompareRequest& request, std::span<const CompareRow> rows);

/// Writes the table of one comparison, the reasons of rejected schedules, the advice, and a legend.
/// `costs_given` is false for the unit costs that nobody asked for.
std::string ComparisonText(const CompareRequest& request, std::span<const CompareRow> rows,
                           bool costs_given, bool wide = false);

/// "rows" and "advice" of a comparison.
Json ComparisonToJson(const CompareRequest& request, std::span<const CompareRow> rows);

/// Columns of one comparison or several, one line a row: the same figures as in JSON, no ranks.
std::string ComparisonCsvHeader();
std::string ComparisonCsv(const CompareRequest& request, std::span<const CompareRow> rows);

/// The front of time against memory as a table with bars.
std::string FrontText(const CompareRequest& request, std::span<const FrontPoint> front,
                      bool costs_given);
/// "front" of `compare --pareto --json`: rows with "memory" and, of `auto`, "memory_limit".
Json FrontToJson(const CompareRequest& request, std::span<const FrontPoint> front);

/// Savings that would help, beside the shortest row as things are.
std::string VariationsText(const CompareRow& now, std::span<const Variation> variations);
Json VariationsToJson(std::span<const Variation> variations);

/// One row of `compare --json`: the object of `simulate --json`, or "rejected".
Json RowToJson(const CompareRow& row, const CompareRequest& request);
/// "1f1b", "auto (bidirectional)"
std::string NameOf(const CompareRow& row);

/// One comparison of several.
struct Point {
  CompareRequest request;
  std::vector<CompareRow> rows;
};

/// The numbers of "16,32,64", or one; each once, where it is first. Throws UsageError if they are
/// none or too large.
std::vector<int> ParseMicrobatches(const std::string& text);

/// The limits of "1x,1.25x", or one; { "" } for none. Each once, and checked later.
std::vector<std::string> ParseMemoryLimits(const std::string& text);

/// Returns every pair of a number of micro-batches and a limit in the flags, without rows. Throws
/// UsageError or Error for faults that no schedule causes. `assumed` as for ResolveCosts.
std::vector<Point> MakePoints(const CompareFlags& flags,
                              std::vector<std::string>* assumed = nullptr);

/// The schedule to take at each point, the step of each schedule at each, `wide` the bubbles, too,
/// then the advice on each point.
std::string SweepText(std::span<const Point> points, bool costs_given, bool wide = false);

/// {"points": [{"microbatches": 16, "memory_limit": "1x", "rows": [...], "advice": {...}}]}
std::string SweepJson(std::span<const Point> points);

std::string SweepCsv(std::span<const Point> points);

}  // namespace contraflow
