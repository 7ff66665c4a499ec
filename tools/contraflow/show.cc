#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// A larger SVG is more than any viewer opens.
constexpr int64_t kMostDrawn = 250'000;

struct ShowOptions {
  std::string plan;
  int rank = -1;
  std::optional<double> from, to;
  std::string format = "text";
  std::string color = "auto";
  int width = 0;  // 0: that of the terminal
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

int Width(const ShowOptions& options) {
  if (options.width != 0) {
    if (options.width > kMaxGridWidth) {
      throw UsageError("--width: must be in " + std::to_string(kMinGridWidth) + ".." +
                       std::to_string(kMaxGridWidth) + ", is " + std::to_string(options.width));
    }
    return options.width;
  }
  winsize size = {};
  if (OnTerminal(options) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::clamp<int>(size.ws_col, kMinGridWidth, kMaxGridWidth);
  }
  return GridStyle{}.width;
}

View ViewOf(const ShowOptions& options, const Plan& plan, Unit unit) {
  if (options.rank != -1 && (options.rank < 0 || options.rank >= plan.ranks)) {
    throw Error("--rank: must be in 0.." + std::to_string(plan.ranks - 1) + ", is " +
                std::to_string(options.rank));
  }
  View view = {.rank = options.rank};
  ReadOption([&] {
    if (options.from) view.from = ToTicks(*options.from, unit, "--from");
    if (options.to) view.to = ToTicks(*options.to, unit, "--to");
  });
  return view;
}

/// Throws Error where nobody could open the drawing.
void CheckDrawable(const ShowOptions& options, int64_t count, const std::string& what) {
  if (count <= kMostDrawn) return;
  throw Error(options.plan + ": has " + FormatCount(count) + what + " (at most " +
              FormatCount(kMostDrawn) + "); use --rank, --from and --to, or --format grid");
}

int Show(const ShowOptions& options) {
  if (options.format != "grid") {
    if (options.width != 0) throw UsageError("--width: is for --format grid only");
    if (options.color != "auto") throw UsageError("--color: is for --format grid only");
  }
  RefuseOverwrite({"--output", options.output}, {{"the plan", options.plan}});
  const int width = Width(options);
  const Plan plan = ReadPlanFile(options.plan);
  const CostModel costs = CostsForPlan({}, plan);
  const View view = ViewOf(options, plan, costs.unit);
  const std::vector<Finding> findings = Verify(plan);
  if (!findings.empty()) {
    // Its instructions can be read all the same, and that is how a flaw is found.
    if (options.format != "text") RequireSound(plan, options.plan);
    WriteFile(options.output, WriteListing(plan, costs, nullptr, view) +
                                  "\nThis plan is not sound, so it has "
                                  "no times: see contraflow verify.\n");
    return kExitFine;
  }
  if (options.format == "text") {
    const Simulation simulation = Simulate(plan, costs);
    WriteFile(options.output, WriteListing(plan, costs, &simulation, view));
    return kExitFine;
  }
  const bool whole = options.rank == -1 && !options.from && !options.to;
  const bool drawing = options.format != "grid";
  // Said before the work is done, where that is known already.
  if (drawing && whole)
    CheckDrawable(options, InstructionCount(plan), " instructions, too many for one drawing");
  const Report report = MakeReport(plan, costs);
  const Picture picture = MakePicture(plan, costs, report.simulation, view);
  if (drawing)
    CheckDrawable(options, BoxCount(picture), " boxes in view, too many for one drawing");
  if (options.format == "grid") {
    WriteFile(options.output, DrawGrid(picture, {.width = width, .color = UseColor(options)}));
  } else if (options.format == "svg") {
    WriteFile(options.output, DrawSvg(picture));
  } else {
    WriteFile(options.output, DrawHtml(picture, plan, report));
  }
  return kExitFine;
}

std::function<int()> AddShow(CLI::App* app) {
  const auto options = std::make_shared<ShowOptions>();
  AddPlan(app, &options->plan);
  AddInteger(app, "--rank", &options->rank, "R", "only this rank", 0);
  AddNumber(app, "--from", &options->from, "T",
            "only what runs at or after this time, in the costs' unit");
  AddNumber(app, "--to", &options->to, "T",
            "only what runs at or before this time, in the costs' unit");
  AddChoice(app, "--format", &options->format, "text|grid|svg|html",
            "instructions with times, or a drawing (default: text)");
  AddChoice(app, "--color", &options->color, "auto|always|never",
            "colour the grid; auto (default): on a terminal, unless NO_COLOR is\nset");
  AddInteger(app, "--width", &options->width, "N",
             "columns of the grid (default: the terminal's, else 100)", kMinGridWidth);
  AddText(app, "-o,--output", &options->output, "FILE", "where to write; - is stdout (default)");
  return [options] { return Show(*options); };
}

}  // namespace

const Command kShowCommand = {
    .name = "show",
    .summary = "show a plan as text, as the grid that papers draw, as SVG or as HTML",
    .example = "contraflow show plan.json --format grid",
    .add = AddShow,
};

}  // namespace contraflow
