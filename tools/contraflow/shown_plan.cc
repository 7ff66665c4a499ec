#include "tools/contraflow/shown_plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/pictures/page.h"
#include "tools/profile/gzip.h"
#include "tools/profile/run_trace.h"
#include "tools/report/difference.h"
#include "tools/report/report.h"
#include "tools/report/standstill.h"

namespace contraflow {

void AddShownPlans(CLI::App* app, ShownPlans* options, const std::string& help) {
  AddTexts(app, "PLAN", &options->plans, help)->required();
  AddInteger(app, "--rank", &options->rank, "R", "only this rank", 0);
  AddTime(app, "--from", &options->from,
          "only what runs at or after this time (6.2ms, or a number in the\ncosts' unit)");
  AddTime(app, "--to", &options->to, "only what runs at or before this time");
  AddText(app, "--trace", &options->trace, "FILE",
          "trace of a run of the plan, drawn below it on the page");
  AddText(app, "--title", &options->title, "TEXT",
          "title of the drawing (default: the plan in one line)");
}

View ShownPlans::ViewOf(const Plan& plan, Unit unit) const {
  if (rank != -1 && (rank < 0 || rank >= plan.ranks)) {
    throw Error("`rank`: must be in 0.." + std::to_string(plan.ranks - 1) + ", is " +
                std::to_string(rank));
  }
  View view = {.rank = rank};
  ReadOption([&] {
    if (from) view.from = ToTicks(*from, unit, "`from`");
    if (to) view.to = ToTicks(*to, unit, "`to`");
    if (view.to && *view.to <= view.from) throw Error("`to`: must be after `from`");
  });
  return view;
}

ShownPlan ShowPlan(const std::string& path) {
  ShownPlan shown;
  ScheduleFile file = ReadTimedSchedule(path);
  shown.costs = CostsOf({}, file, nullptr);
  shown.plan = std::move(file.plan);
  shown.name = std::filesystem::path(path).stem().string() + ": " + shown.plan.schedule;
  shown.broken = RunBroken(shown.plan, shown.costs, path);
  if (!shown.broken) shown.report = MakeReport(shown.plan, shown.costs);
  return shown;
}

namespace {

PagePlan OnPage(const ShownPlan& shown) {
  if (shown.report) return PageOf(shown.plan, shown.costs, *shown.report, shown.name);
  return {.plan = &shown.plan,
          .costs = &shown.costs,
          .name = shown.name,
          .run = &shown.broken->simulation,
          .broken = &*shown.broken};
}

}  // namespace

bool SayUnlikeWork(const ShownPlan& first, const ShownPlan& other) {
  if (!first.report || !other.report) return false;
  const auto figures = [](const ShownPlan& shown) {
    return FiguresOf(shown.plan, shown.costs.unit, shown.report->simulation);
  };
  const std::string note = UnlikeWork(first.name, figures(first), other.name, figures(other));
  if (!note.empty()) Say("contraflow: note: " + note);
  return !note.empty();
}

std::string PageOfPlans(const ShownPlans& options) {
  std::vector<ShownPlan> shown;
  for (const std::string& path : options.plans) shown.push_back(ShowPlan(path));
  std::vector<PagePlan> pages;
  Time longest = 0;
  for (const ShownPlan& plan : shown) {
    pages.push_back(OnPage(plan));
    SayUnlikeWork(shown.front(), plan);
    longest = std::max(longest, Makespan(pages.back().run->timeline));
  }
  const ShownPlan& first = shown.front();
  std::optional<Simulation> measured;
  if (!options.trace.empty()) {
    if (!first.report) RequireSound(first.plan, options.plans.front());
    std::string text = ReadFile(options.trace, kMostTraceBytes);
    if (IsGzip(text)) text = Gunzip(text, kMostTraceBytes, options.trace);
    const std::vector<TraceText> traces = {{options.trace, std::move(text)}};
    MeasuredRun run = ReadRun(first.plan, traces);
    const std::string note = run.Note();
    measured = RunOf(first.plan, first.costs, std::move(run.timeline));
    measured->timeline.measured = true;
    pages.push_back({.plan = &first.plan,
                     .costs = &first.costs,
                     .name = "measured" + (note.empty() ? "" : " (" + note + ")"),
                     .run = &*measured});
    longest = std::max(longest, Makespan(measured->timeline));
  }
  const View view = options.ViewOf(first.plan, first.costs.unit);
  return DrawPage(pages, Within(view, longest, first.costs.unit), options.title);
}

}  // namespace contraflow
