#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/units.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/standstill.h"

namespace CLI {
class App;
}

namespace contraflow {

/// Plans to draw, and the part of them: flags of `show` and `open`.
struct ShownPlans {
  std::vector<std::string> plans;  ///< files or folders, or PyTorch's CSV
  std::string trace;               ///< file of a measured run of the plan; "": none
  std::string title;               ///< "": that of the plans
  int rank = -1;                   ///< -1: all
  std::optional<GivenTime> from, to;

  /// The part of a plan that is drawn. Throws Error for a rank or times outside it.
  View ViewOf(const Plan& plan, Unit unit) const;
};

void AddShownPlans(CLI::App* app, ShownPlans* options, const std::string& help);

/// A plan with its times: of one that is not sound up to where it stands.
struct ShownPlan {
  Plan plan;
  CostModel costs;
  std::optional<Report> report;     ///< of a sound plan
  std::optional<BrokenRun> broken;  ///< of one that is not
  std::string name;                 ///< "file: schedule"
};

/// Throws Error for a plan that cannot be executed at all.
ShownPlan ShowPlan(const std::string& path);

/// Says on standard error that a plan does other work than the first one, so that their steps do
/// not compare. Returns whether it does.
bool SayUnlikeWork(const ShownPlan& first, const ShownPlan& other);

/// Draws the page of the plans, one above the other, and below a single plan its measured run.
std::string PageOfPlans(const ShownPlans& options);

}  // namespace contraflow
