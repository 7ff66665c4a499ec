#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/verify/verify.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/pictures/page.h"
#include "tools/pictures/picture.h"
#include "tools/profile/gzip.h"
#include "tools/profile/run_trace.h"
#include "tools/report/report.h"
#include "tools/report/standstill.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// A larger SVG is more than any viewer opens.
constexpr int64_t kMostDrawn = 250'000;

struct ShowOptions {
  std::vector<std::string> plans;
  std::string trace;
  int rank = -1;
  std::optional<GivenTime> from, to;
  std::string format;  // that of the output's name
  std::string color = "auto";
  std::optional<int64_t> width;  // that of the terminal
  std::string output = "-";
};

bool OnTerminal(const ShowOptions& options) {
  return options.output == "-" && isatty(STDOUT_FILENO) == 1;
}

bool UseColor(const ShowOptions& options) {
  if (options.color != "auto") return options.color == "always";
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return OnTerminal(options) && (no_color == nullptr || *no_color == '\0') &&
         (terminal == nullptr || std::string(terminal) != "dumb");
}

int WidthIn(int64_t width, int least, int most, const std::string& format) {
  if (width >= least && width <= most) return static_cast<int>(width);
  throw UsageError("`width`: must be in " + std::to_string(least) + ".." + std::to_string(most) +
                   " for `format` " + format + ", is " + std::to_string(width));
}

int Width(const ShowOptions& options) {
  if (options.width) return WidthIn(*options.width, kMinGridWidth, kMaxGridWidth, "grid");
  if (options.output == "-") {
    if (const std::optional<int> width = OutputWidth()) {
      return std::clamp(*width, kMinGridWidth, kMaxGridWidth);
    }
  }
  return GridStyle{}.width;
}

std::optional<int> SvgWidth(const ShowOptions& options) {
  if (!options.width) return std::nullopt;
  return WidthIn(*options.width, kMinSvgWidth, kMaxSvgWidth, "svg");
}

View ViewOf(const ShowOptions& options, const Plan& plan, Unit unit) {
  if (options.rank != -1 && (options.rank < 0 || options.rank >= plan.ranks)) {
    throw Error("`rank`: must be in 0.." + std::to_string(plan.ranks - 1) + ", is " +
                std::to_string(options.rank));
  }
  View view = {.rank = options.rank};
  ReadOption([&] {
    if (options.from) view.from = ToTicks(*options.from, unit, "`from`");
    if (options.to) view.to = ToTicks(*options.to, unit, "`to`");
    if (view.to && *view.to <= view.from) throw Error("`to`: must be after `from`");
  });
  return view;
}

/// A plan with its times: of one that is not sound up to where it stands.
struct Shown {
  Plan plan;
  CostModel costs;
  std::optional<Report> report;     ///< of a sound plan
  std::optional<BrokenRun> broken;  ///< of one that is not
  std::string name;
};

/// Throws Error for a plan that cannot be executed at all.
Shown ShowPlan(const std::string& path) {
  Shown shown;
  ScheduleFile file = ReadTimedSchedule(path);
  shown.costs = CostsOf({}, file, nullptr);
  shown.plan = std::move(file.plan);
  shown.name = std::filesystem::path(path).stem().string() + ": " + shown.plan.schedule;
  shown.broken = RunBroken(shown.plan, shown.costs, path);
  if (!shown.broken) shown.report = MakeReport(shown.plan, shown.costs);
  return shown;
}

PagePlan OnPage(const Shown& shown) {
  if (shown.report) return PageOf(shown.plan, shown.costs, *shown.report, shown.name);
  return {.plan = &shown.plan,
          .costs = &shown.costs,
          .name = shown.name,
          .run = &shown.broken->simulation,
          .broken = &*shown.broken};
}

/// Draws the plans one above the other and, below a single plan, its measured run.
std::string Page(const ShowOptions& options) {
  std::vector<Shown> shown;
  for (const std::string& path : options.plans) shown.push_back(ShowPlan(path));
  std::vector<PagePlan> pages;
  Time longest = 0;
  for (const Shown& plan : shown) {
    pages.push_back(OnPage(plan));
    longest = std::max(longest, Makespan(pages.back().run->timeline));
  }
  const Shown& first = shown.front();
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
  const View view = ViewOf(options, first.plan, first.costs.unit);
  return DrawPage(pages, Within(view, longest, first.costs.unit));
}

/// The picture of one plan for --format grid and svg.
Picture PictureOf(const ShowOptions& options, const Shown& shown) {
  const View view = ViewOf(options, shown.plan, shown.costs.unit);
  if (shown.report) return MakePicture(shown.plan, shown.costs, shown.report->simulation, view);
  return MakeBrokenPicture(shown.plan, shown.costs, *shown.broken, view);
}

std::string Listing(const ShowOptions& options, const std::string& path) {
  const ScheduleFile file = ReadTimedSchedule(path);
  const Plan& plan = file.plan;
  const CostModel costs = CostsOf({}, file, nullptr);
  const View view = ViewOf(options, plan, costs.unit);
  if (Verify(plan).empty()) {
    const Simulation simulation = Simulate(plan, costs);
    return WriteListing(plan, costs, &simulation, view);
  }
  // The instructions of an unsound plan can be read, to find its flaw.
  const std::string listing = WriteListing(plan, costs, nullptr, view);
  return listing + "\n" + WriteStandstill(*RunBroken(plan, costs, path), plan, costs.unit);
}

void CheckFlags(const ShowOptions& options) {
  const bool html = options.format == "html";
  if (options.width && options.format != "grid" && options.format != "svg") {
    throw UsageError("`width`: is for `format` grid and svg only");
  }
  if (options.color != "auto" && options.format != "grid") {
    throw UsageError("`color`: is for `format` grid only");
  }
  if (options.plans.size() > 1 && !html) {
    throw UsageError("several plans are for `format` html only");
  }
  if (options.trace.empty()) return;
  if (!html) throw UsageError("`trace`: is for `format` html only");
  if (options.plans.size() > 1) throw UsageError("`trace`: is of one plan; give that one alone");
}

/// Fills in the format by the name of the output, and refuses another one.
void TakeFormat(ShowOptions* options) {
  std::string& format = options->format;
  std::string named = Plain(std::filesystem::path(options->output).extension().string());
  named = named == "txt" ? "text" : named == "htm" ? "html" : named;
  for (const char* const other : {"png", "pdf", "jpg", "dot", "json", "csv", "cbor"}) {
    if (named != other || !format.empty()) continue;
    throw UsageError("`output` " + options->output + ": show draws .svg, .html and text; " +
                     (named == "png" || named == "pdf" || named == "jpg"
                          ? "other programs make ." + named + " of an .svg"
                          : "compile, export and simulate write ." + named + " files"));
  }
  if (named != "svg" && named != "html" && named != "text") named.clear();
  if (format.empty()) format = named.empty() ? "text" : named;
  if (named.empty() || format == named || (named == "text" && format == "grid")) return;
  throw UsageError("`format` " + format + ": does not go with `output` " + options->output +
                   "; drop one of them");
}

int Show(ShowOptions options) {
  TakeFormat(&options);
  CheckFlags(options);
  const NamedFile output = {"`output`", options.output};
  for (const std::string& path : options.plans) RefuseOverwrite(output, {{"the plan", path}});
  RefuseOverwrite(output, {{"`trace`", options.trace}});
  const std::string& path = options.plans.front();
  if (options.format == "html") {
    WriteFile(options.output, Page(options));
  } else if (options.format == "text") {
    const std::string listing = Listing(options, path);
    options.output == "-" ? Print(listing) : WriteFile(options.output, listing);
  } else if (options.format == "grid") {
    const int width = Width(options);
    const Picture picture = PictureOf(options, ShowPlan(path));
    WriteFile(options.output, DrawGrid(picture, {.width = width, .color = UseColor(options)}));
  } else {
    const std::optional<int> width = SvgWidth(options);
    const Picture picture = PictureOf(options, ShowPlan(path));
    const int64_t count = BoxCount(picture);
    if (count > kMostDrawn) {
      throw Error(path + ": has " + FormatCount(count) +
                  " boxes in view, too many for one drawing (at most " + FormatCount(kMostDrawn) +
                  "); use `rank`, `from` and `to`, or `format` html");
    }
    WriteFile(options.output, DrawSvg(picture, width));
  }
  return kExitFine;
}

std::function<int()> AddShow(CLI::App* app) {
  const auto options = std::make_shared<ShowOptions>();
  AddTexts(app, "PLAN", &options->plans,
           "plan files or folders, or PyTorch's CSV; - is standard input; several\nfor --format "
           "html, one above the other")
      ->required();
  AddInteger(app, "--rank", &options->rank, "R", "only this rank", 0);
  AddTime(app, "--from", &options->from,
          "only what runs at or after this time (6.2ms, or a number in the\ncosts' unit)");
  AddTime(app, "--to", &options->to, "only what runs at or before this time");
  AddChoice(
      app, "--format", &options->format, "text|grid|svg|html",
      "instructions with times, a drawing, or an interactive page (default:\nas -o ends, else "
      "text)");
  AddChoice(app, "--color", &options->color, "auto|always|never",
            "colour the grid; auto (default): on a terminal, unless NO_COLOR is\nset");
  AddInteger(app, "--width", &options->width, "N",
             "columns of the grid (default: the terminal's, else 100), or pixels of\nthe SVG "
             "(default: as labels need, at most some 4,000)");
  AddText(app, "--trace", &options->trace, "FILE",
          "trace of a run of the plan, drawn below it; for --format html");
  AddText(app, "-o,--output", &options->output, "FILE", "where to write; - is stdout (default)");
  return [options] { return Show(*options); };
}

}  // namespace

const Command kShowCommand = {
    .name = "show",
    .summary = "show a plan as text, as the grid that papers draw, as SVG or as a page",
    .example = "contraflow show plan.json --format grid",
    .add = AddShow,
};

}  // namespace contraflow
