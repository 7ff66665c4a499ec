#pragma once

#include <string>

#include "compiler/plan/text.h"
#include "tools/contraflow/report.h"

namespace contraflow {

/// "dualpipe: 8 ranks, 8 stages, 20 micro-batches (level comm)"
std::string DescribePlan(const Plan& plan);

/// "searched: v placement, from zb-v, 66 units in its compute order, bound 66 units; seed 0" and a
/// line break, for a plan that was; else "".
std::string DescribeSearch(const Plan& plan);

/// The line about the costs; says so where they are the unit costs nobody asked for.
std::string DescribeCostsUsed(const CostModel& costs, bool chosen);

/// Busy time, bubble and peak memory of each rank; with components its all-to-all, too.
std::string RankTable(const Report& report, bool bytes);

/// Bytes of each rank by kind, or "" where no more is known than RankTable says.
std::string MemoryTable(const Report& report);

/// What a lower bound rests on: "busy rank, rank 3: head 3 + work 24".
std::string DescribeBound(const Bound& bound, Unit unit);

/// Makespan, span, bubble ratio, lower bound and what it rests on, formula and critical path, one
/// line each.
std::string SummaryTable(const Plan& plan, const Report& report);

/// How the simulated bubbles compare with the formula: "holds on every rank" or by how much not.
std::string CompareWithFormula(const Report& report);

/// "6 to 7.5", or "6" where both are equal.
std::string FormatRange(Time low, Time high, Unit unit);

}  // namespace contraflow
