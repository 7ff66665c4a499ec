#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <variant>

#include "compiler/error.h"
#include "compiler/file.h"
#include "tools/build.h"
#include "tools/cmd.h"
#include "tools/costs_option.h"
#include "tools/exit.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/report_text.h"
#include "tools/table.h"

namespace contraflow {
namespace {

struct CompareOptions {
  int ranks = 0, microbatches = 0, data_parallel = 1;
  CostsOption costs;
  std::string memory_limit;
  bool json = false;
};

/// One schedule: its figures, or why it does not fit.
struct Row {
  std::string schedule;
  int stages = 0;
  std::optional<Report> report;
  std::string rejected;
};

std::vector<Row> MakeRows(const Spec& wanted, const std::string& memory_limit) {
  std::vector<Row> rows;
  for (const Schedule* schedule : Schedules()) {
    Spec spec = wanted;
    spec.schedule = schedule->name;
    Row row = {spec.schedule, schedule->stages(spec), {}, {}};
    const Progress progress("compiling " + spec.schedule);
    try {
      row.report = MakeReport(BuildPlan(spec, memory_limit, Level::kComm), spec.costs);
    } catch (const Error& error) {
      row.rejected = error.what();
      // The schedule's name stands in the first column already.
      if (row.rejected.starts_with(row.schedule + " ")) {
        row.rejected.erase(0, row.schedule.size() + 1);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string RowsJson(const std::vector<Row>& rows) {
  Json::Array array;
  for (const Row& row : rows) {
    if (row.report) {
      array.push_back(ReportToJson(*row.report));
      continue;
    }
    auto object = std::make_unique<JsonObject>();
    object->Add("schedule", {row.schedule});
    object->Add("rejected", {row.rejected});
    array.push_back({std::move(object)});
  }
  auto document = std::make_unique<JsonObject>();
  document->Add("rows", {std::move(array)});
  return FormatJson({std::move(document)});
}

std::vector<std::string> Figures(const Row& row, int ranks, bool bytes) {
  const Report& report = *row.report;
  const auto time = [&](Time ticks) { return FormatTime(ticks, report.unit); };
  const auto& figures = report.simulation.ranks;
  const auto less = [](const RankFigures& a, const RankFigures& b) { return a.bubble < b.bubble; };
  const auto [low, high] = std::minmax_element(figures.begin(), figures.end(), less);
  std::vector<std::string> cells = {
      row.schedule + (row.stages > ranks ? " *" : ""), time(report.simulation.makespan),
      FormatRange(low->bubble, high->bubble, report.unit),
      FormatPercent(report.simulation.bubble_ratio()), std::to_string(report.peak_activations())};
  if (bytes) cells.push_back(FormatCount(report.peak_bytes()));
  cells.push_back(FormatPercent(report.gap()));
  if (report.formula) {
    cells.push_back(std::string(report.formula->text) + " = " + time(report.formula->published) +
                    (report.formula->holds ? "" : ", does not hold"));
  }
  return cells;
}

/// "shortest with 8 stages: zb-1p, dualpipe", a line for each number of stages.
std::string Shortest(const std::vector<Row>& rows) {
  std::map<int, std::pair<Time, std::string>> best;
  for (const Row& row : rows) {
    if (!row.report) continue;
    const Time makespan = row.report->simulation.makespan;
    auto [at, added] = best.try_emplace(row.stages, makespan, row.schedule);
    if (added) continue;
    if (makespan < at->second.first) {
      at->second = {makespan, row.schedule};
    } else if (makespan == at->second.first) {
      at->second.second += ", " + row.schedule;
    }
  }
  std::string text;
  for (const auto& [stages, entry] : best) {
    text += "shortest with " + std::to_string(stages) + " stages: " + entry.second + "\n";
  }
  return text;
}

std::string RowsText(const std::vector<Row>& rows, const CompareOptions& options,
                     const CostModel& costs) {
  const bool bytes = costs.memory.has_value();
  Table table;
  table.columns = {"schedule", ">makespan", ">bubble", ">ratio", ">activations"};
  if (bytes) table.columns.push_back(">bytes");
  table.columns.insert(table.columns.end(), {">gap", "formula"});
  std::string rejected, footnote;
  for (const Row& row : rows) {
    if (!row.report) {
      rejected += "rejected: " + row.schedule + ": " + row.rejected + "\n";
      continue;
    }
    table.rows.push_back(Figures(row, options.ranks, bytes));
    if (row.stages > options.ranks) {
      const int chunks = row.stages / options.ranks;
      footnote = "* " + std::to_string(chunks) +
                 " stages a rank. The costs are those of one stage, so this row is a model of " +
                 std::to_string(chunks) +
                 " times the\n  size; for the same model, halve the costs.\n";
    }
  }
  std::string text = std::to_string(options.ranks) + " ranks, " +
                     std::to_string(options.microbatches) + " micro-batches\n" +
                     DescribeCostsUsed(costs, options.costs.given()) + "\n\n";
  if (!table.rows.empty()) text += FormatTable(table) + "\n";
  if (!rejected.empty()) text += rejected + "\n";
  text += Shortest(rows) + footnote +
          "bubble: of a rank, makespan minus busy time. gap: from a proven lower bound.\n" +
          "activations: the most a rank holds at once, from F to the end of W.\n";
  return text + std::string(kFormulaLegend);
}

int Compare(const CompareOptions& options) {
  const Spec spec = {.schedule = "",
                     .ranks = options.ranks,
                     .microbatches = options.microbatches,
                     .chunks = 0,
                     .data_parallel = options.data_parallel,
                     .costs = ResolveCosts(options.costs, UnitCosts()),
                     .memory_limit = {}};
  CheckSpec(spec);
  // What no schedule can be blamed for is an error and not a reason to reject it.
  if (!options.memory_limit.empty()) ParseMemoryLimit(options.memory_limit, spec, spec.ranks);
  const std::vector<Row> rows = MakeRows(spec, options.memory_limit);
  WriteFile("-", options.json ? RowsJson(rows) : RowsText(rows, options, spec.costs));
  return kExitFine;
}

std::function<int()> Add(CLI::App* app) {
  const auto options = std::make_shared<CompareOptions>();
  AddInteger(app, "--ranks", &options->ranks, "P", "members of the pipeline")->required();
  AddInteger(app, "--microbatches", &options->microbatches, "M", "micro-batches of one step")
      ->required();
  AddCostsOptions(app, &options->costs, "f = b = w = 1");
  app->add_option("--memory-limit", options->memory_limit,
                  "reject what holds more on a rank; see contraflow compile --help")
      ->type_name("BYTES|Nx");
  AddJson(app, &options->json);
  return [options] { return Compare(*options); };
}

}  // namespace

const Command kCompareCommand = {
    .name = "compare",
    .summary = "all schedules side by side for one set of costs",
    .example = "contraflow compare --ranks 8 --microbatches 20 --costs deepseek-v3-h800",
    .add = Add,
};

}  // namespace contraflow
