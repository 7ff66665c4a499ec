#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"

namespace contraflow {

/// Place where a rank of a plan that is not sound goes no further.
struct StoppedRank {
  int rank = 0;
  int index = 0;           ///< the instruction that it stands at
  std::string text = {};   ///< that in words
  Time since = 0;          ///< when it had done what it can
  int on_rank = -1;        ///< the rank that it waits for; -1: for what no rank will make
  std::string lacks = {};  ///< of a SEND: what would make its value, and is not in the program
  bool in_cycle = false;   ///< of ranks that wait for each other
};

/// A plan that is not sound, run up to where it stands.
struct BrokenRun {
  std::vector<Finding> findings;
  std::vector<BlockedAt> cycle;  ///< of ranks that wait for each other, if there is one
  Simulation simulation;
  std::vector<StoppedRank> stops;  ///< ascending; none of a rank that gets to its end
};

/// Returns nothing for a sound plan. Throws Error with the first findings for one of which nothing
/// can be executed; `path` is its name there.
std::optional<BrokenRun> RunBroken(const Plan& plan, const CostModel& costs,
                                   const std::string& path);

/// The first findings, a line each, and how many there are.
std::vector<std::string> FindingLines(const std::vector<Finding>& findings, const Plan& plan);

/// Writes the fault of the plan, and a table: each rank, its place, its wait, and since when.
std::string WriteStandstill(const BrokenRun& broken, const Plan& plan, Unit unit);

/// "stands at 4 (SEND_F s0 m2 to=1) and waits for rank 1"; "" of a rank that does not.
std::string DescribeStop(const BrokenRun& broken, int rank);

/// "findings" and "cycle" of reports, and "stands" of each rank.
void AddStandstill(const BrokenRun& broken, const Plan& plan, Unit unit, Json* document);

}  // namespace contraflow
