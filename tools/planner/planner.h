#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/memory.h"
#include "tools/planner/configuration.h"

namespace contraflow {

/// A configuration with the best plan that was found for it.
struct PlannerRow {
  Configuration configuration;
  std::string schedule;   ///< as --schedule takes it
  std::string recompute;  ///< as --recompute takes it
  std::string target;     ///< as --for of `compile` takes it; empty: any
  std::string overlap;    ///< as --overlap of `compile` takes it; empty: all
  int chunks = 0;         ///< as --chunks takes it; 0: the schedule's own
  int64_t budget = 0;     ///< of its search, nanoseconds
  Plan plan = {};         ///< level comm, with its costs
  Time step = 0;
  Time bound = 0;
  double tokens_per_second_per_gpu = 0, mfu = 0;
  MemoryFigures memory = {};  ///< of the fullest rank
  /// Shares of the step on the average rank, largest first: "compute" and the causes of idle time.
  std::vector<std::pair<std::string, double>> parts = {};
};

/// Answer to a PlanRequest.
struct PlannerResult {
  std::vector<PlannerRow> rows;  ///< shortest step first, at most PlanRequest::top
  Rejected rejected;
  int compiled = 0;          ///< configurations that were compiled and fit
  bool interrupted = false;  ///< ended before its budget, so that it may come out better again
};

/// Called with the share of the work that is done and the best row so far, null before the first.
using PlanReport = std::function<void(double done, const PlannerRow* best)>;

/// Compiles the configurations of a request, in the order of a guess of their steps, searches the
/// promising ones for a short while, and the best again for longer. Deterministic: budgets are
/// counted, no clock is read. `report` is called before each search. Ends with the rows so far once
/// `stop` is true. Each row is a plan that the framework of the request runs. Throws Error if no
/// configuration fits, with the least memory that one needs.
PlannerResult FindPlans(const PlanRequest& request, const PlanReport& report = {},
                        const std::atomic<bool>* stop = nullptr);

/// Words of the `contraflow compile` that gives the plan of a row from costs in this file.
std::string CompileLine(const PlannerRow& row, const std::string& costs, const std::string& output);
/// Writes costs.json, plan.json and command.txt of a row to a folder, which is made where it is
/// absent, and the files that start the framework of the request. Returns the names of files there
/// that start another framework, with an earlier plan.
std::vector<std::string> WriteRow(const PlanRequest& request, const PlannerRow& row,
                                  const std::string& folder);

/// "tp 2 ep 1 pp 4 dp 2, 1f1b: 2.088 s" of a row.
std::string WriteBrief(const PlannerRow& row);
/// Text for people: a row each, assumptions, and the configurations that are not in it.
std::string WritePlans(const PlanRequest& request, const PlannerResult& result);
/// The object of `plan --json` (the public contract).
std::string PlansToJson(const PlanRequest& request, const PlannerResult& result);

}  // namespace contraflow
