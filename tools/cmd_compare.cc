#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>

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
  /// Where the report is of components that overlap as far as they can: chunk by chunk as in the
  /// papers.
  std::optional<Report> published;
  std::string rejected;
};

/// The costs to compare with, and how.
struct Wanted {
  Spec spec;
  std::string memory_limit;
  /// The chunk costs follow from components, so these decide how long a step takes.
  bool components = false;
  CostModel published = {};  ///< with components: the costs of chunks that overlap as in the papers

  Overlap overlap() const { return spec.costs.derived.value_or(Overlap::kAll); }
};

Wanted MakeWanted(const CompareOptions& options) {
  Wanted wanted = {.spec = {.schedule = "",
                            .ranks = options.ranks,
                            .microbatches = options.microbatches,
                            .chunks = 0,
                            .data_parallel = options.data_parallel,
                            .costs = ResolveCosts(options.costs, UnitCosts()),
                            .memory_limit = {}},
                   .memory_limit = options.memory_limit};
  const CostsOption& costs = options.costs;
  const bool chunks_given = costs.f || costs.b || costs.w || costs.bw || costs.fb;
  wanted.components = wanted.spec.costs.moe && wanted.spec.costs.derived && !chunks_given;
  if (wanted.components) {
    CostsOption published = costs;
    published.overlap = Name(Overlap::kPublished);
    wanted.published = ResolveCosts(published, UnitCosts());
  }
  return wanted;
}

Report ReportOf(Spec spec, const CostModel& costs, const std::string& memory_limit, Level level) {
  spec.costs = costs;
  const BuildOptions options = {.level = level,
                                .overlap = costs.derived.value_or(Overlap::kAll),
                                .memory_limit = memory_limit};
  const Plan plan = BuildPlan(spec, options);
  std::optional<int64_t> limit;
  if (!memory_limit.empty()) limit = ParseMemoryLimit(memory_limit, spec, plan.stages);
  return MakeReport(plan, costs, limit);
}

/// Chunk by chunk as in the papers; how much of the all-to-all is exposed is what the components of
/// the same chunks say.
Report PublishedReport(const Spec& spec, const Wanted& wanted) {
  Report report = ReportOf(spec, wanted.published, wanted.memory_limit, Level::kComm);
  const Report parts = ReportOf(spec, wanted.published, wanted.memory_limit, Level::kComponent);
  for (size_t r = 0; r < report.simulation.ranks.size(); ++r) {
    report.simulation.ranks[r].all_to_all = parts.simulation.ranks[r].all_to_all;
    report.simulation.ranks[r].exposed = parts.simulation.ranks[r].exposed;
  }
  report.components = true;
  return report;
}

std::vector<Row> MakeRows(const Wanted& wanted) {
  std::vector<Row> rows;
  for (const Schedule* schedule : Schedules()) {
    Spec spec = wanted.spec;
    spec.schedule = schedule->name;
    Row row = {spec.schedule, schedule->stages(spec), {}, {}, {}};
    const Progress progress("compiling " + spec.schedule);
    try {
      if (!wanted.components) {
        row.report = ReportOf(spec, spec.costs, wanted.memory_limit, Level::kComm);
      } else if (wanted.overlap() == Overlap::kPublished) {
        row.report = PublishedReport(spec, wanted);
      } else {
        row.report = ReportOf(spec, spec.costs, wanted.memory_limit, Level::kComponent);
        row.published = ReportOf(spec, wanted.published, wanted.memory_limit, Level::kComm);
      }
    } catch (const Error& error) {
      row.report.reset();
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

std::unique_ptr<JsonObject> RowJson(const Row& row, const Wanted& wanted) {
  if (!row.report) {
    auto object = std::make_unique<JsonObject>();
    object->Add("schedule", {row.schedule});
    object->Add("rejected", {row.rejected});
    return object;
  }
  auto object = ReportToJson(*row.report);
  if (!wanted.components) return object;
  object->Add("overlap", {std::string(Name(wanted.overlap()))});
  object->Add("exposed", TimeToJson(row.report->largest_exposed(), row.report->unit));
  if (row.published) {
    const Report& published = *row.published;
    object->Add("published_makespan", TimeToJson(published.simulation.makespan, published.unit));
    object->Add("published_peak_activations", {int64_t{published.peak_activations()}});
    object->Add("published_peak_bytes", {published.peak_bytes()});
  }
  return object;
}

std::string RowsJson(const std::vector<Row>& rows, const Wanted& wanted) {
  Json::Array array;
  for (const Row& row : rows) array.push_back({RowJson(row, wanted)});
  auto document = std::make_unique<JsonObject>();
  document->Add("rows", {std::move(array)});
  return FormatJson({std::move(document)});
}

/// By how much less `now` is than `before`.
std::string Saving(Time now, Time before) {
  if (before == 0) return FormatPercent(0);
  return FormatPercent(static_cast<double>(before - now) / static_cast<double>(before));
}

/// One column of the table: its heading, and what stands in it for a schedule.
struct Column {
  const char* heading;
  std::function<std::string(const Row&)> cell;
};

std::vector<Column> Columns(const Wanted& wanted) {
  const Unit unit = wanted.spec.costs.unit;
  const auto makespan = [](const Report& report) { return report.simulation.makespan; };
  const bool both = wanted.components && wanted.overlap() == Overlap::kAll;
  std::vector<Column> columns = {
      {"schedule",
       [&](const Row& row) { return row.schedule + (row.stages > wanted.spec.ranks ? " *" : ""); }},
      {">makespan", [=](const Row& row) { return FormatTime(makespan(*row.report), unit); }}};
  if (both) {
    columns.push_back(
        {">published", [=](const Row& row) { return FormatTime(makespan(*row.published), unit); }});
    columns.push_back({">shorter", [=](const Row& row) {
                         return Saving(makespan(*row.report), makespan(*row.published));
                       }});
  }
  columns.push_back({">bubble", [=](const Row& row) {
                       const auto& ranks = row.report->simulation.ranks;
                       const auto [low, high] = std::minmax_element(
                           ranks.begin(), ranks.end(),
                           [](const auto& a, const auto& b) { return a.bubble < b.bubble; });
                       return FormatRange(low->bubble, high->bubble, unit);
                     }});
  columns.push_back({">ratio", [](const Row& row) {
                       return FormatPercent(row.report->simulation.bubble_ratio());
                     }});
  if (wanted.components) {
    columns.push_back({">exposed", [=](const Row& row) {
                         return FormatTime(row.report->largest_exposed(), unit);
                       }});
  }
  columns.push_back({">activations", [](const Row& row) {
                       return std::to_string(row.report->peak_activations());
                     }});
  if (both) {
    columns.push_back({">published", [](const Row& row) {
                         return std::to_string(row.published->peak_activations());
                       }});
  }
  if (wanted.spec.costs.memory) {
    columns.push_back(
        {">bytes", [](const Row& row) { return FormatCount(row.report->peak_bytes()); }});
  }
  columns.push_back({">gap", [](const Row& row) { return FormatPercent(row.report->gap()); }});
  if (both) return columns;
  columns.push_back({"formula", [=](const Row& row) {
                       if (!row.report->formula) return std::string();
                       const FormulaFigures& formula = *row.report->formula;
                       return std::string(formula.text) + " = " +
                              FormatTime(formula.published, unit) +
                              (formula.holds ? "" : ", does not hold");
                     }});
  return columns;
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

std::string Footer(const Wanted& wanted) {
  std::string text =
      "bubble: of a rank, makespan minus busy time.\n"
      "gap: from a proven lower bound for the row's placement and --memory-limit, if given.\n"
      "activations: the most a rank holds at once, from F to the end of W.\n";
  if (!wanted.components) return text + std::string(kFormulaLegend);
  text += "exposed: the most a rank spends in all-to-all while its compute lane is idle.\n";
  if (wanted.overlap() == Overlap::kPublished) return text + std::string(kFormulaLegend);
  return text +
         "published: the papers' overlap, of F&B pairs only, chunk by chunk (--overlap "
         "published);\n"
         "the other figures are those of components that overlap wherever it makes a step "
         "shorter\n"
         "and no rank holds more than --memory-limit or, without one, than the schedule does.\n";
}

std::string RowsText(const std::vector<Row>& rows, const CompareOptions& options,
                     const Wanted& wanted) {
  const std::vector<Column> columns = Columns(wanted);
  Table table;
  for (const Column& column : columns) table.columns.emplace_back(column.heading);
  std::string rejected, footnote;
  for (const Row& row : rows) {
    if (!row.report) {
      rejected += "rejected: " + row.schedule + ": " + row.rejected + "\n";
      continue;
    }
    table.rows.emplace_back();
    for (const Column& column : columns) table.rows.back().push_back(column.cell(row));
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
                     DescribeCostsUsed(wanted.spec.costs, options.costs.given()) + "\n\n";
  if (!table.rows.empty()) text += FormatTable(table) + "\n";
  if (!rejected.empty()) text += rejected + "\n";
  return text + Shortest(rows) + footnote + Footer(wanted);
}

int Compare(const CompareOptions& options) {
  const Wanted wanted = MakeWanted(options);
  CheckSpec(wanted.spec);
  // What no schedule can be blamed for is an error and not a reason to reject it.
  if (!options.memory_limit.empty()) {
    ParseMemoryLimit(options.memory_limit, wanted.spec, wanted.spec.ranks);
  }
  const std::vector<Row> rows = MakeRows(wanted);
  WriteFile("-", options.json ? RowsJson(rows, wanted) : RowsText(rows, options, wanted));
  return kExitFine;
}

std::function<int()> Add(CLI::App* app) {
  const auto options = std::make_shared<CompareOptions>();
  AddInteger(app, "--ranks", &options->ranks, "P", "members of the pipeline")->required();
  AddInteger(app, "--microbatches", &options->microbatches, "M", "micro-batches of one step")
      ->required();
  AddCostsOptions(app, &options->costs, "f = b = w = 1");
  app->add_option("--memory-limit", options->memory_limit,
                  "reject what holds more on a rank, overlap as far as that;\n"
                  "see contraflow compile --help")
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
