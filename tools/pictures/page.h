#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"

namespace contraflow {

/// Most instructions of all plans of one page: a browser needs 50 bytes for each.
inline constexpr int64_t kMostOnPage = 8'000'000;

/// One plan of a page, and when its instructions run. All that it points to must outlive it.
struct PagePlan {
  const Plan* plan = nullptr;
  const CostModel* costs = nullptr;
  std::string name;                   ///< above its rows where there are several
  const Simulation* run = nullptr;    ///< an instruction that never runs has start -1
  const Report* report = nullptr;     ///< null for a plan that is not sound, or was measured
  const BrokenRun* broken = nullptr;  ///< of one that is not sound
  double memory = 0;                  ///< CompareRow::memory; 0: MemoryOf1F1B
};

/// A sound plan as it is predicted; all three must outlive it.
PagePlan PageOf(const Plan& plan, const CostModel& costs, const Report& report, std::string name);

/// Draws a self-contained HTML page without network requests: the plans one above the other on one
/// axis of time, to zoom into and to inspect. It opens with `view` of each plan. An empty title:
/// the plan in one line, or the names of several. Throws Error for more than kMostOnPage
/// instructions.
std::string DrawPage(std::span<const PagePlan> plans, const View& view, std::string title = {});

/// A plan as a JSON value for the page, its instructions packed into text; page_data.cc has the
/// format, decode.js reads it.
void WritePagePlan(const PagePlan& plan, std::string* out);

/// The files that make the page, in the order in which they are put into it; embed.cmake makes them
/// of page.html, page.css and *.js.
struct PageAsset {
  std::string_view name, text;
};
extern const std::span<const PageAsset> kPageAssets;

}  // namespace contraflow
