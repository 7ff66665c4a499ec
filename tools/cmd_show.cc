#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "compiler/error.h"
#include "compiler/file.h"
#include "compiler/plan_io.h"
#include "compiler/verify.h"
#include "tools/cmd.h"
#include "tools/costs_option.h"
#include "tools/exit.h"
#include "tools/grid.h"
#include "tools/options.h"
#include "tools/report_text.h"
#include "tools/svg.h"
#include "tools/table.h"

namespace contraflow {
namespace {

/// A larger SVG is more than any viewer opens.
constexpr int64_t kMostDrawn = 250'000;

struct ShowOptions {
  std::string plan;
  int rank = -1;
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
    if (options.width < kMinGridWidth || options.width > kMaxGridWidth) {
      throw Error("--width: must be in " + std::to_string(kMinGridWidth) + ".." +
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

/// "0..9" for 0 to 9, "0 2 4" for others.
std::string FormatList(const std::vector<int>& list) {
  const bool run =
      list.size() > 3 && list.back() - list.front() + 1 == static_cast<int>(list.size());
  if (run && std::is_sorted(list.begin(), list.end())) {
    return std::to_string(list.front()) + ".." + std::to_string(list.back());
  }
  const bool down =
      list.size() > 3 && list.front() - list.back() + 1 == static_cast<int>(list.size());
  if (down && std::is_sorted(list.rbegin(), list.rend())) {
    return std::to_string(list.front()) + ".." + std::to_string(list.back());
  }
  std::string text;
  for (const int item : list) text += (text.empty() ? "" : " ") + std::to_string(item);
  return text;
}

std::string Head(const Plan& plan, const CostModel& costs) {
  std::string text = DescribePlan(plan) + "\n";
  for (size_t route = 0; route < plan.routes.size(); ++route) {
    text += "route " + std::to_string(route) + ": stages 0.." + std::to_string(plan.stages - 1) +
            " on ranks " + FormatList(plan.routes[route].ranks) + ", micro-batches " +
            FormatList(plan.routes[route].microbatches) + "\n";
  }
  return text + DescribeCostsUsed(costs, plan.costs.has_value()) + "\n";
}

/// The programs, one instruction a line, with predicted times where there are any.
std::string ShowText(const Plan& plan, const CostModel& costs, const Simulation* simulation,
                     int only) {
  std::string text = Head(plan, costs);
  if (simulation != nullptr) {
    text += "makespan " + FormatWithUnit(simulation->makespan, costs.unit) +
            "; times are start and end\n";
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (only >= 0 && rank != only) continue;
    const auto r = static_cast<size_t>(rank);
    Table table;
    table.columns = {">", "", ">", ">"};
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      table.rows.push_back({"  " + std::to_string(i), ToString(plan.programs[r][i])});
      if (simulation == nullptr) continue;
      const Span& span = simulation->timeline.ranks[r][i];
      table.rows.back().push_back(FormatTime(span.start, costs.unit));
      table.rows.back().push_back(FormatTime(span.end, costs.unit));
    }
    text += "\nrank " + std::to_string(rank);
    if (simulation != nullptr) {
      const RankFigures& figures = simulation->ranks[r];
      text += ": busy " + FormatTime(figures.busy, costs.unit) + ", bubble " +
              FormatTime(figures.bubble, costs.unit) + ", at most " +
              std::to_string(figures.peak_activations) + " activations";
    }
    const std::string lines = FormatTable(table);
    text += "\n" + lines.substr(lines.find('\n') + 1);
  }
  return text +
         "\nF forward, B backward for the input gradient only, W for the weight gradient only, BW\n"
         "both in one go, FB a forward overlapped with a full backward; s stage, m micro-batch.\n";
}

int Show(const ShowOptions& options) {
  const int width = Width(options);
  const Plan plan = ReadPlanFile(options.plan);
  if (options.rank != -1 && (options.rank < 0 || options.rank >= plan.ranks)) {
    throw Error("--rank: must be in 0.." + std::to_string(plan.ranks - 1) + ", is " +
                std::to_string(options.rank));
  }
  const CostModel costs = CostsForPlan({}, plan);
  const std::vector<Finding> findings = Verify(plan);
  if (!findings.empty()) {
    // Its instructions can be read all the same, and that is how a flaw is found.
    if (options.format != "text") RequireSound(plan, options.plan);
    WriteFile(options.output, ShowText(plan, costs, nullptr, options.rank) +
                                  "\nThis plan is not sound, so it has "
                                  "no times: see contraflow verify.\n");
    return kExitFine;
  }
  const bool drawing = options.format == "svg" || options.format == "html";
  if (drawing && options.rank == -1 && InstructionCount(plan) > kMostDrawn) {
    throw Error(options.plan + ": has " + FormatCount(InstructionCount(plan)) +
                " instructions, too many for one drawing (at most " + FormatCount(kMostDrawn) +
                "); use --rank, or --format grid");
  }
  const Report report = MakeReport(plan, costs);
  const Picture picture = MakePicture(plan, costs, report.simulation, options.rank);
  if (options.format == "text") {
    WriteFile(options.output, ShowText(plan, costs, &report.simulation, options.rank));
  } else if (options.format == "grid") {
    WriteFile(options.output, DrawGrid(picture, {.width = width, .color = UseColor(options)}));
  } else if (options.format == "svg") {
    WriteFile(options.output, DrawSvg(picture));
  } else {
    WriteFile(options.output, DrawHtml(picture, plan, report));
  }
  return kExitFine;
}

std::function<int()> Add(CLI::App* app) {
  const auto options = std::make_shared<ShowOptions>();
  AddPlan(app, &options->plan);
  AddInteger(app, "--rank", &options->rank, "R", "this rank only");
  AddChoice(app, "--format", &options->format, "text|grid|svg|html",
            "instructions with times, or a drawing (default: text)");
  AddChoice(app, "--color", &options->color, "auto|always|never",
            "of the grid; auto: on a terminal, unless NO_COLOR is set");
  AddInteger(app, "--width", &options->width, "N",
             "columns of the grid (default: the terminal's, else 100)");
  app->add_option("-o,--output", options->output, "default: stdout")->type_name("FILE");
  return [options] { return Show(*options); };
}

}  // namespace

const Command kShowCommand = {
    .name = "show",
    .summary = "a plan as text, as the grid known from the papers, as SVG or HTML",
    .example = "contraflow show plan.json --format grid",
    .add = Add,
};

}  // namespace contraflow
