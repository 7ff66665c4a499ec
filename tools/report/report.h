#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/text.h"
#include "schedules/report.h"
#include "tools/report/text.h"

namespace contraflow {

/// Throws Error with the first findings if the plan is not sound.
void RequireSound(const Plan& plan, const std::string& path);

/// One kind of memory of a rank.
struct MemoryKind {
  std::string_view key;    ///< in JSON
  std::string_view title;  ///< in tables
  int64_t bytes = 0;
};

/// The kinds that are known, and their total last; those of the gradient and exchange arenas at
/// level buffer only.
std::vector<MemoryKind> MemoryKinds(const MemoryFigures& figures, Level level);

/// The object of `simulate --json` (the public contract), figures in the report's unit.
Json ReportToJson(const Report& report);

/// Writes an object as the document of a report, for example "simulate": one line a member, and one
/// for each element of an array. It begins with "format" (contraflow-simulate) and "version".
std::string FormatJson(std::string_view report, const Json& document);

/// Meaning of the letters of the formulas; stands below every table that prints one.
extern const std::string_view kFormulaLegend;

/// Stands after a makespan of Report::without_updates.
inline constexpr const char* kWithoutUpdates = ", without gradient sums and optimizer";

/// Title of the idle share of plans. Without components an all-to-all counts as busy, and idle time
/// is the papers' bubble. With components the compute lane is idle during an exposed all-to-all.
inline const char* IdleTitle(bool components) {
  return components ? "compute idle" : "bubble ratio";
}

/// "1 rank", "8 ranks", "1,024 micro-batches"
std::string Counted(int64_t n, const std::string& noun);

/// "8 ranks x 8 expert-parallel x 2 data-parallel = 128 GPUs"; without GPUs where nothing says how
/// many a rank has.
std::string DescribeDevices(int ranks, const std::optional<Parallel>& parallel, int data_parallel);

/// "dualpipe: 8 ranks, 8 stages, 20 micro-batches (level comm)"
std::string DescribePlan(const Plan& plan);

/// "searched: v placement, from zb-v, 66 units, bound 66 units; seed 0" and a
/// line break, for a plan that was; else "".
std::string DescribeSearch(const Plan& plan);

/// The line about the costs; says so where they are the unit costs nobody asked for.
std::string DescribeCostsUsed(const CostModel& costs, bool chosen);

/// Busy time, bubble and peak memory of each rank; with components its all-to-all, too.
Table RankTable(const Report& report, bool bytes);

/// Bytes of each rank by kind, or "" where no more is known than RankTable says.
std::string MemoryTable(const Report& report);

/// Basis of a lower bound: "busy rank, rank 3: head 3 + work 24".
std::string DescribeBound(const Bound& bound, Unit unit);

/// Writes makespan, span, bubble ratio, lower bound with its argument, formula and critical path,
/// one line each.
std::string SummaryTable(const Plan& plan, const Report& report);

/// How the simulated bubbles compare with the formula: "holds on every rank" or by how much not.
std::string CompareWithFormula(const Report& report);

/// "6 to 7.5", or "6" where both are equal.
std::string FormatRange(Time low, Time high, Unit unit);

/// One line for people: "costs: f 1, b 1, w 1, bw 2, fb 3, comm 0 (unit)".
std::string DescribeCosts(const CostModel& costs);

class ProgressLine;

}  // namespace contraflow
