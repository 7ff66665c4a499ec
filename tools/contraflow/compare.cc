#include "schedules/compare.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "schedules/front.h"
#include "schedules/published/rows.h"
#include "tools/cli/compare_flags.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/pictures/page.h"
#include "tools/report/comparison.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

/// Plans to compare, and how the result is told.
struct CompareCommand : CompareFlags {
  bool json = false, csv = false, pareto = false, wide = false;
  std::optional<std::string> vary;
  std::string output, html, title, format = "text";

  /// True if the plans are to be drawn.
  bool page() const { return !html.empty() || format == "html"; }
};

std::string Text(const CompareCommand& options, const std::vector<Point>& points, bool sweep) {
  const Point& first = points.front();
  if (options.csv) return SweepCsv(points);
  if (sweep) {
    return options.json ? SweepJson(points)
                        : SweepText(points, options.costs.given(), options.wide);
  }
  if (options.json) return FormatJson("compare", ComparisonToJson(first.request, first.rows));
  return ComparisonText(first.request, first.rows, options.costs.given(), options.wide);
}

/// Ctrl-C ends the search of `auto` with the best so far; published schedules are made before that.
std::vector<CompareRow> CompareUntilInterrupt(CompareRequest request, ProgressLine* progress) {
  request.control = WatchSearch(Interrupt::stop(), progress, request.spec.costs.unit);
  const Interrupt interrupt;
  return Compare(request, [&](std::string_view schedule) {
    progress->Say("compiling " + std::string(schedule));
  });
}

/// Throws Error if no schedule takes any of the points, all for one reason.
void RefuseWhatNoneTakes(const CostsOption& costs, std::span<const Point> points) {
  std::string reason;
  for (const Point& point : points) {
    const std::string why = RejectedByAll(point.request, point.rows);
    if (why.empty() || (!reason.empty() && why != reason)) return;
    reason = why;
  }
  if (!reason.empty()) throw Error(WithCostsFile(costs, reason));
}

/// The front of time against memory.
int RunPareto(const CompareCommand& options, CompareRequest request) {
  if (request.assumed_limit) {
    // All amounts of memory are its subject.
    request.assumed_limit = false;
    request.memory_limit.clear();
  }
  std::vector<FrontPoint> front;
  {
    ProgressLine progress("comparing");
    request.control = WatchSearch(Interrupt::stop(), &progress, request.spec.costs.unit);
    const Interrupt interrupt;
    front = ParetoFront(
        request, [&](std::string_view next) { progress.Say("compiling " + std::string(next)); });
  }
  if (front.empty()) {
    request.no_auto = true;  // it finds nothing either
    const Point published{request, Compare(request)};
    RefuseWhatNoneTakes(options.costs, {&published, 1});
  }
  if (options.json) {
    WriteFile("-", FormatJson("compare", {{"front", FrontToJson(request, front)}}));
  } else {
    Print(FrontText(request, front, options.costs.given()));
  }
  return front.empty() ? kExitInput : kExitFine;
}

/// Returns the names of --vary; none for all. Throws UsageError for an unknown name.
std::vector<std::string> NamesToVary(const std::string& list) {
  std::vector<std::string> names;
  if (list == "all") return names;
  const std::vector<std::string> known = VariedNames();
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    if (std::ranges::count(known, name) == 0) {
      throw UsageError("`vary`: there is no \"" + name.substr(0, 64) + "\"" +
                       DidYouMean(name, known) +
                       "; give some of f, b, w, all-to-all, comm and memory, or all");
    }
    if (std::ranges::count(names, name) == 0) names.push_back(name);
    begin = end + 1;
  }
  return names;
}

/// Effects of a lower cost or more memory, one after the other.
std::vector<Variation> VaryAll(const CompareCommand& options, CompareRequest request,
                               const CompareRow& now) {
  ProgressLine progress("comparing");
  request.control = WatchSearch(Interrupt::stop(), &progress, request.spec.costs.unit);
  const Interrupt interrupt;
  return Vary(request, now, NamesToVary(*options.vary),
              [&](std::string_view name) { progress.Say("with other " + std::string(name)); });
}

/// Prints one comparison, its table and the other output that flags ask for.
void PrintOne(const CompareCommand& options, const std::vector<Point>& points,
              const std::vector<std::string>& assumed) {
  const Point& point = points.front();
  std::optional<std::vector<Variation>> variations;
  const CompareRow* const now = Shortest(point.rows);
  if (options.vary && now != nullptr) variations = VaryAll(options, point.request, *now);
  if (options.json) {
    Json json = ComparisonToJson(point.request, point.rows);
    if (variations) json["vary"] = VariationsToJson(*variations);
    for (const std::string& what : assumed) json["warnings"].push_back(WithFlags(what));
    WriteFile("-", FormatJson("compare", json));
    return;
  }
  std::string text = Text(options, points, false);
  if (variations) text += "\n" + VariationsText(*now, *variations);
  Print(text);
}

/// The plans of all rows that fit, one above the other on one axis: the one advised first, then the
/// shorter ones.
std::string Page(const Point& point, const std::string& title) {
  const CompareRow* const advised = Advise(point.rows).row;
  std::vector<const CompareRow*> rows;
  for (const CompareRow& row : point.rows) {
    if (row.plan && row.report) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const CompareRow* a, const CompareRow* b) {
    if ((a == advised) != (b == advised)) return a == advised;
    return a->makespan() < b->makespan();
  });
  std::vector<CostModel> costs;
  std::vector<Report> reports;
  costs.reserve(rows.size());
  reports.reserve(rows.size());
  std::vector<PagePlan> pages;
  for (const CompareRow* row : rows) {
    costs.push_back(CostsForPlan({}, *row->plan));
    reports.push_back(MakeReport(*row->plan, costs.back()));
    pages.push_back(PageOf(*row->plan, costs.back(), reports.back(),
                           NameOf(*row) + (row == advised ? " (advised)"
                                           : row->fits    ? ""
                                                          : " (does not fit)")));
    pages.back().memory = row->memory;
  }
  return DrawPage(pages, {}, title);
}

void CheckFlags(const CompareCommand& options, bool sweep) {
  const auto refuse = [](bool both, const char* why) {
    if (both) throw UsageError(std::string("compare: ") + why);
  };
  refuse(options.html == "-", "`html`: must be a file; standard output is for the table");
  refuse(options.page() && (sweep || options.pareto),
         "`html` and `format` html: are for one number of micro-batches and one limit, without "
         "`pareto`");
  refuse(!options.title.empty() && !options.page(),
         "`title`: is that of the page; add `html` FILE");
  refuse(options.format != "text" && options.json, "`format`: is another form than `json`");
  refuse(options.format == "html" && (options.csv || options.vary),
         "`format` html: prints the page alone; drop `csv` and `vary`, or give `html` FILE");
  refuse(options.json && options.csv, "`csv`: is another form than `json`; give one of them");
  refuse(options.pareto && (options.csv || options.vary || !options.output.empty()),
         "`pareto`: prints the front alone; drop `csv`, `vary` and -o");
  refuse(options.vary && options.csv, "`vary`: has no CSV; drop `csv`");
  refuse(sweep && (options.pareto || options.vary || !options.output.empty()),
         "`pareto`, `vary` and -o: are for one number of micro-batches and one limit");
  if (options.vary) NamesToVary(*options.vary);
  std::vector<CompareRow> none;
  if (!options.sort.empty()) SortRows(options.sort, &none);
  refuse(!options.sort.empty() && (sweep || options.pareto),
         "`sort`: is for one number of micro-batches and one limit, without `pareto`");
  refuse(options.output == "-", "-o: must be a file; standard output is for the table");
}

int Run(const CompareCommand& options) {
  std::vector<std::string> assumed;
  std::vector<Point> points = MakePoints(options, &assumed);
  Warn(assumed);
  const int64_t budget = points.front().request.spec.search.budget;
  for (Point& point : points) {
    point.request.keep_plans = !options.output.empty() || options.page();
    // The budget is that of the whole command.
    point.request.spec.search.budget /= static_cast<int64_t>(points.size());
  }
  const bool sweep = points.size() > 1;
  CheckFlags(options, sweep);
  const NamedFile costs_file = {"`costs`", options.costs.file.value_or("")};
  RefuseOverwrite({"-o", options.output}, {costs_file});
  RefuseOverwrite({"`html`", options.html}, {costs_file, {"-o", options.output}});
  if (options.pareto) return RunPareto(options, points.front().request);
  size_t compared = 0;
  bool interrupted = false;
  double spent = 0;
  {
    ProgressLine progress("comparing");
    for (; compared < points.size() && !interrupted; ++compared) {
      Point& point = points[compared];
      point.request.single_too = !sweep;
      point.rows = CompareUntilInterrupt(point.request, &progress);
      for (const CompareRow& row : point.rows) spent += row.spent;
      if (!options.sort.empty()) SortRows(options.sort, &point.rows);
      interrupted = std::any_of(point.rows.begin(), point.rows.end(),
                                [](const CompareRow& row) { return row.interrupted(); });
    }
  }
  if (const std::string note = OverspentNote(spent, budget); !note.empty()) Say(note);
  const size_t missing = points.size() - compared;
  if (missing == 0) RefuseWhatNoneTakes(options.costs, points);
  const bool any = std::any_of(points.begin(), points.end(),
                               [](const Point& point) { return Shortest(point.rows) != nullptr; });
  points.erase(points.begin() + static_cast<std::ptrdiff_t>(compared), points.end());
  if (!options.html.empty() && any) WriteFile(options.html, Page(points.front(), options.title));
  if (!options.output.empty() && any) {
    WritePlanFile(options.output, *Advise(points.front().rows).row->plan);
  }
  if (sweep || options.csv) {
    const std::string text = Text(options, points, sweep);
    options.csv || options.json ? WriteFile("-", text) : Print(text);
  } else if (options.format == "html" && any) {
    WriteFile("-", Page(points.front(), options.title));
  } else {
    PrintOne(options, points, assumed);
  }
  if (interrupted) {
    std::string text = "contraflow: interrupted: auto is the best found so far";
    if (missing > 0) text += "; " + std::to_string(missing) + " of the sweep were not compared";
    Say(text);
  }
  // Why each does not is in the table.
  return any ? kExitFine : kExitInput;
}

std::function<int()> AddCompare(CLI::App* app) {
  const auto options = std::make_shared<CompareCommand>();
  AddCompareOptions(app, options.get());
  AddText(app, "--html", &options->html, "FILE",
          "write an HTML page with the timelines of all schedules, the advised\none first");
  AddText(app, "--title", &options->title, "TEXT", "title of that page");
  AddChoice(app, "--format", &options->format, "text|csv|html",
            "print the table, CSV, or that page (default: text)");
  AddJson(app, &options->json);
  app->add_flag("--csv", options->csv, "print CSV, a line per schedule, and nothing else");
  app->add_flag("--wide", options->wide, "add every other column");
  app->add_flag("--pareto", options->pareto, "print the Pareto front of step time and memory");
  app->add_option("--vary", options->vary,
                  "print what a step would take with one of these 10 % lower (memory:\n10 % more): "
                  "f, b, w, comm, all-to-all, memory, or all")
      ->type_name("NAME,...");
  AddText(app, "-o", &options->output, "FILE",
          "write the plan of the schedule advised, if any fits");
  AddQuiet(app);
  AddVerbose(app, kSayProgress);
  return [options, app] {
    options->csv |= options->format == "csv";
    if (options->sort.empty() && app->count("--sort") > 0) options->sort = "step";
    return Run(*options);
  };
}

}  // namespace

const Command kCompareCommand = {
    .name = "compare",
    .summary = "compare all schedules side by side for your costs, and recommend one",
    .example = "contraflow compare --ranks 8 --microbatches 20 --costs deepseek-v3-h800",
    .add = AddCompare,
};

}  // namespace contraflow
