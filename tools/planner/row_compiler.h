#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/partition/made_plans.h"
#include "tools/planner/configuration.h"
#include "tools/planner/estimate.h"
#include "tools/planner/planner.h"

namespace contraflow {

struct CompileFlags;
/// Flags of the `contraflow compile` of a row, with these costs.
CompileFlags CompileFlagsOf(const PlannerRow& row, const CostModel& costs);

/// True if the schedule hides all-to-alls in F&B pairs.
bool HidesInPairs(std::string_view schedule);

/// Reasons why configurations have no row, each the last one met; "" where there was none.
struct RowFlaws {
  std::string configuration;   ///< why the framework does not run a configuration
  std::string plan;            ///< why it does not run a plan
  std::string schedule;        ///< why a schedule does not take a configuration
  bool taken = false;          ///< a schedule takes a configuration
  bool last_of_plans = false;  ///< the framework did not run a plan of the last `BestOf`
};

/// Compiles configurations of a request to rows, and counts the processor time that this takes.
class RowCompiler {
 public:
  /// `stop` ends a search; it may be null.
  RowCompiler(const PlanRequest& request, const std::atomic<bool>* stop)
      : request_(request), stop_(stop), costs_(request) {}

  PlannerCosts& costs() { return costs_; }
  const RowFlaws& flaws() const { return flaws_; }
  /// True if orders are searched, not only those of named schedules made.
  bool searches() const;
  /// Processor time of all compilations so far, about, in nanoseconds.
  int64_t spent() const { return spent_; }
  /// From now on tries more stages a rank and, where a searched schedule may gain by it, recompute.
  void Deepen() { deep_ = true; }

  /// Throws Error if stages a rank are fixed and no schedule takes their number.
  void CheckDepth() const;
  /// True if the framework trains with the schedule so.
  bool Takes(const Configuration& configuration, const std::string& schedule);
  /// Processor time of compiling with that schedule, about, without its search.
  int64_t WorkOf(const Configuration& configuration, std::string_view schedule,
                 bool recompute = false) const;

  /// Returns the shortest of the schedules and, where memory is tight, with and without recompute.
  /// `budget` is that of a search of orders, in nanoseconds. None if no plan fits.
  std::optional<PlannerRow> BestOf(const Configuration& configuration, const Estimate& estimate,
                                   const std::vector<std::string>& schedules, int64_t budget);
  /// Makes the plan of a row that BestOf returned again.
  void Remake(const Estimate& estimate, PlannerRow* row);

 private:
  int FixedDepth() const;
  std::vector<int> DepthsOf(const Configuration& configuration, const std::string& schedule);
  bool Made(const Estimate& estimate, PlannerRow* row);

  const PlanRequest& request_;
  const std::atomic<bool>* const stop_;
  PlannerCosts costs_;
  std::optional<MadePlans> made_;  // of one configuration
  RowFlaws flaws_;
  bool deep_ = false;
  int64_t spent_ = 0;
};

}  // namespace contraflow
