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
#include "tools/contraflow/shown_plan.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/standstill.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// A larger SVG is more than any viewer opens.
constexpr int64_t kMostDrawn = 250'000;

struct ShowOptions : ShownPlans {
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

/// The picture of one plan for --format grid and svg.
Picture PictureOf(const ShowOptions& options, const ShownPlan& shown) {
  const View view = options.ViewOf(shown.plan, shown.costs.unit);
  if (shown.report) return MakePicture(shown.plan, shown.costs, shown.report->simulation, view);
  return MakeBrokenPicture(shown.plan, shown.costs, *shown.broken, view);
}

/// The plans as one SVG.
std::string Svg(const ShowOptions& options) {
  std::vector<Picture> pictures;
  std::optional<ShownPlan> first;
  for (const std::string& path : options.plans) {
    ShownPlan shown = ShowPlan(path);
    Picture picture = PictureOf(options, shown);
    if (options.plans.size() > 1) {
      const auto makespan = [](const ShownPlan& plan) {
        return plan.report ? plan.report->simulation.makespan : Time{0};
      };
      picture.heading = shown.name;
      const bool compares = first && makespan(shown) > 0 && !SayUnlikeWork(*first, shown);
      const std::string change =
          compares ? FormatChange(makespan(*first), makespan(shown)) : std::string();
      if (!first) first = std::move(shown);
      if (!change.empty()) picture.heading += ", " + change + " vs the first";
    }
    if (!pictures.empty() &&
        (picture.unit == Unit::kUnit) != (pictures.front().unit == Unit::kUnit)) {
      throw Error(path + ": its costs are in another unit than those of " + options.plans.front() +
                  ", so both have no axis in common");
    }
    pictures.push_back(std::move(picture));
  }
  int64_t count = 0;
  for (const Picture& picture : pictures) count += BoxCount(picture);
  if (count > kMostDrawn) {
    throw Error(options.plans.front() + ": has " + FormatCount(count) +
                " boxes in view, too many for one drawing (at most " + FormatCount(kMostDrawn) +
                "); use `rank`, `from` and `to`, or `format` html");
  }
  const std::optional<int> width = SvgWidth(options);
  if (pictures.size() == 1 && options.title.empty()) return DrawSvg(pictures.front(), width);
  return DrawSvg(pictures, options.title, width);
}

std::string Listing(const ShowOptions& options, const std::string& path) {
  const ScheduleFile file = ReadTimedSchedule(path);
  const Plan& plan = file.plan;
  const CostModel costs = CostsOf({}, file, nullptr);
  const View view = options.ViewOf(plan, costs.unit);
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
  const bool drawn = html || options.format == "svg";
  if (options.plans.size() > 1 && !drawn) {
    throw UsageError("several plans are for `format` html and svg only");
  }
  if (!options.title.empty() && !drawn) {
    throw UsageError("`title`: is for `format` html and svg only");
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
    WriteFile(options.output, PageOfPlans(options));
  } else if (options.format == "text") {
    const std::string listing = Listing(options, path);
    options.output == "-" ? Print(listing) : WriteFile(options.output, listing);
  } else if (options.format == "grid") {
    const int width = Width(options);
    const Picture picture = PictureOf(options, ShowPlan(path));
    WriteFile(options.output, DrawGrid(picture, {.width = width, .color = UseColor(options)}));
  } else {
    WriteFile(options.output, Svg(options));
  }
  return kExitFine;
}

std::function<int()> AddShow(CLI::App* app) {
  const auto options = std::make_shared<ShowOptions>();
  AddShownPlans(
      app, options.get(),
      "plan files or folders, or PyTorch's CSV; - is standard input; several\nfor --format "
      "html and svg, one above the other");
  AddChoice(
      app, "--format", &options->format, "text|grid|svg|html",
      "instructions with times, a drawing, or an interactive page (default:\nas -o ends, else "
      "text)");
  AddChoice(app, "--color", &options->color, "auto|always|never",
            "colour the grid; auto (default): on a terminal, unless NO_COLOR is\nset");
  AddInteger(app, "--width", &options->width, "N",
             "columns of the grid (default: the terminal's, else 100), or pixels of\nthe SVG "
             "(default: as labels need, at most some 4,000)");
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
