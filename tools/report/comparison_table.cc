#include <algorithm>
#include <functional>

#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/compile.h"
#include "schedules/partition/stages.h"
#include "tools/cli/exit.h"
#include "tools/report/comparison.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Saving of `now` over `before`.
std::string Saving(Time now, Time before) {
  if (before == 0) return FormatPercent(0);
  return FormatPercent(static_cast<double>(before - now) / static_cast<double>(before));
}

/// One column of the table: its heading, and the text of a schedule's cell.
struct ComparedFigure {
  const char* heading;
  std::function<std::string(const CompareRow&)> cell;
};

std::string Bubbles(const CompareRow& row, const TimeScale& scale) {
  const auto& ranks = row.report->simulation.ranks;
  const auto [low, high] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.bubble < b.bubble; });
  if (low->bubble == high->bubble) return scale.Of(low->bubble);
  return scale.Of(low->bubble) + " to " + scale.Of(high->bubble);
}

std::string FormulaOf(const CompareRow& row, Unit unit) {
  if (!row.report->formula) return "";
  const FormulaFigures& formula = *row.report->formula;
  return std::string(formula.text) + " = " + FormatFigure(formula.published, unit) +
         (formula.holds ? "" : ", does not hold");
}

bool OverlapsFurther(const CompareRequest& request) {
  return request.components && request.overlap() == Overlap::kAll;
}

/// Published bubbles are of equal stages and micro-batches that overlap as published.
bool ShowsFormulas(const CompareRequest& request, std::span<const CompareRow> rows) {
  return !OverlapsFurther(request) &&
         std::any_of(rows.begin(), rows.end(),
                     [](const CompareRow& row) { return row.report && row.report->formula; });
}

/// "0, 2-5", or "none".
std::string Ranges(const std::vector<int>& stages) {
  std::string text;
  for (size_t i = 0; i < stages.size();) {
    size_t end = i + 1;
    while (end < stages.size() && stages[end] == stages[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(stages[i]);
    if (end - i > 1) text += "-" + std::to_string(stages[end - 1]);
    i = end;
  }
  return text.empty() ? "none" : text;
}

/// True where activations have a column in bytes.
bool ShowsBytes(const CostModel& costs) {
  return costs.layers.empty() ? costs.memory.has_value() : CountsBytes(costs);
}

/// True where some row may not fit.
bool ShowsFits(const CompareRequest& request, std::span<const CompareRow> rows) {
  return !DevicesOf(request.spec).empty() ||
         std::ranges::any_of(rows, [](const CompareRow& row) { return row.report && !row.fits; });
}

/// Bytes that a rank holds and that ranks send.
void AddHoldings(const CompareRequest& request, std::span<const CompareRow> rows, bool wide,
                 std::vector<ComparedFigure>* columns) {
  columns->push_back({">memory", [](const CompareRow& row) { return FormatMultiple(row.memory); }});
  if (wide) {
    columns->push_back({">activations", [](const CompareRow& row) {
                          return std::to_string(row.report->peak_activations());
                        }});
  }
  if (ShowsBytes(request.spec.costs)) {
    columns->push_back(
        {">bytes", [](const CompareRow& row) { return FormatBytes(row.report->peak_bytes()); }});
  }
  const auto knows = [&](auto member) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const CompareRow& row) { return (row.*member).has_value(); });
  };
  if (knows(&CompareRow::parameters)) {
    columns->push_back({">parameters", [](const CompareRow& row) {
                          return row.parameters ? FormatBytes(*row.parameters) : "";
                        }});
  }
  if (knows(&CompareRow::parameters) || !DevicesOf(request.spec).empty()) {
    columns->push_back(
        {">total", [](const CompareRow& row) { return row.total ? FormatBytes(*row.total) : ""; }});
  }
  if (ShowsFits(request, rows)) {
    columns->push_back({"fits", [](const CompareRow& row) { return row.fits ? "yes" : "no"; }});
  }
  if (knows(&CompareRow::message_bytes)) {
    columns->push_back({">sent", [](const CompareRow& row) {
                          return row.message_bytes ? FormatBytes(*row.message_bytes) : "";
                        }});
  } else {
    columns->push_back(
        {">messages", [](const CompareRow& row) { return FormatCount(row.messages); }});
  }
}

std::vector<ComparedFigure> Columns(const CompareRequest& request, std::span<const CompareRow> rows,
                                    bool wide) {
  const Unit unit = request.spec.costs.unit;
  const auto makespan = [](const Report& report) { return report.simulation.makespan; };
  const bool both = OverlapsFurther(request);
  Time longest = 0;
  for (const CompareRow& row : rows) {
    if (row.report) longest = std::max(longest, row.makespan());
    if (row.published) longest = std::max(longest, makespan(*row.published));
  }
  const TimeScale scale(longest, unit);
  std::vector<ComparedFigure> columns = {
      {"schedule", NameOf},
      {">makespan", [=](const CompareRow& row) { return scale.Of(row.makespan()); }}};
  if (both) {
    columns.push_back({">published makespan",
                       [=](const CompareRow& row) { return scale.Of(makespan(*row.published)); }});
    columns.push_back({">shorter", [=](const CompareRow& row) {
                         return Saving(row.makespan(), makespan(*row.published));
                       }});
  }
  columns.push_back(
      {">span", [=](const CompareRow& row) { return scale.Of(row.report->simulation.span); }});
  columns.push_back({">bubble", [=](const CompareRow& row) { return Bubbles(row, scale); }});
  columns.push_back({">ratio", [](const CompareRow& row) {
                       return FormatPercent(row.report->simulation.bubble_ratio());
                     }});
  columns.push_back(
      {">gap", [](const CompareRow& row) { return FormatPercent(row.report->gap()); }});
  if (request.components) {
    columns.push_back({">exposed", [=](const CompareRow& row) {
                         return scale.Of(row.report->largest_exposed());
                       }});
  }
  AddHoldings(request, rows, wide, &columns);
  if (request.recomputes()) {
    columns.push_back({"recomputed", [](const CompareRow& row) { return Ranges(row.recomputed); }});
  }
  if (!ShowsFormulas(request, rows)) return columns;
  columns.push_back({"formula", [=](const CompareRow& row) { return FormulaOf(row, unit); }});
  return columns;
}

std::string Footer(const CompareRequest& request, std::span<const CompareRow> rows, bool wide) {
  const bool layers = !request.spec.costs.layers.empty();
  std::string text =
      "span: the longest time from a rank's first start to its last end.\n"
      "bubble: makespan minus a rank's busy time, lowest to highest.\n"
      "ratio: all bubbles together, as a share of all ranks' time.\n"
      "gap: how far the makespan is above a proven lower bound on any order of the row's\n"
      "  placement and memory limit" +
      std::string(layers ? " and its partition" : "") +
      ", also on orders that split the backward.\n"
      "memory: activations of the fullest rank, as a multiple of what 1F1B holds.\n";
  if (wide) {
    text +=
        "activations: the most a rank holds at once, each of one of its stages, from F\n"
        "  to the end of W.\n";
  }
  if (ShowsBytes(request.spec.costs)) {
    text +=
        "bytes: the most that a rank's activations take at once. B frees part of an\n"
        "  activation, W the rest, its weight stash.\n";
  }
  const auto knows = [&](auto member) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const CompareRow& row) { return (row.*member).has_value(); });
  };
  if (knows(&CompareRow::parameters))
    text += "parameters: bytes of the rank that holds the most.\n";
  if (knows(&CompareRow::parameters) || !DevicesOf(request.spec).empty()) {
    text +=
        "total: bytes of all that the fullest rank holds: parameters, gradients,\n"
        "  optimizer state, activations, messages and workspace, as far as the costs say.\n";
  }
  if (ShowsFits(request, rows)) {
    text += DevicesOf(request.spec).empty() ? "fits: no rank holds more than the limit.\n"
                                            : "fits: every rank's total fits its device.\n";
  }
  text += knows(&CompareRow::message_bytes)
              ? "sent: bytes between ranks in one step.\n"
              : "messages: how many are sent between ranks in one step.\n";
  if (request.recomputes()) text += "recomputed: the stages that run their forward again.\n";
  std::string formula;
  if (ShowsFormulas(request, rows)) {
    formula = "formula: the published bubble of a rank, and whether it holds for these costs.\n" +
              std::string(kFormulaLegend);
  }
  if (std::ranges::any_of(request.spec.costs.layers, IsMoe)) {
    text +=
        "All rows are at level comm: components of MoE layers overlap within a chunk or a\n"
        "  pair alone. compile --level component makes plans in which all of them may.\n";
  }
  if (!request.components) return text + formula;
  text +=
      "exposed: the longest time for which a rank is in all-to-all with its compute\n"
      "  lane idle.\n"
      "These are MoE costs, so all rows are at level component (compile --level\n"
      "component makes these plans), and bubbles are of the compute lane.\n";
  if (request.overlap() == Overlap::kPublished) return text + formula;
  return text +
         "published: with the papers' overlap, only of a forward with a backward\n"
         "  (--overlap published).\n"
         "In all other figures components overlap wherever that shortens the step and no\n"
         "rank exceeds --memory-limit or, without one, the schedule's own peak. All-to-alls\n"
         "hide behind what a rank can run next: runs of forwards (gpipe) hide most, so rows\n"
         "need not be in the papers' order, which the column published has.\n";
}

}  // namespace

std::string NoteOnPairs(const CompareRequest& request, std::span<const CompareRow> rows) {
  const auto gains = [](const StageCost& cost) { return cost.fb < cost.f + cost.bw; };
  const CostModel& costs = request.spec.costs;
  if (request.components || std::ranges::any_of(costs.stages, gains)) return "";
  for (const LayerCost& layer : costs.layers) {
    if (IsMoe(layer) || gains(layer.cost)) return "";
  }
  std::string names;
  for (const CompareRow& row : rows) {
    if (row.report && row.pairs && !row.provenance) {
      names += (names.empty() ? "" : ", ") + row.schedule;
    }
  }
  if (names.empty()) return "";
  return "note: fb is f + bw in these costs, so overlapped pairs gain nothing in " + names +
         (costs.layers.empty() ? "; --fb says how long they take.\n\n" : ".\n\n");
}

Table ComparisonTable(const CompareRequest& request, std::span<const CompareRow> rows, bool wide) {
  const std::vector<ComparedFigure> columns = Columns(request, rows, wide);
  Table table;
  for (const ComparedFigure& column : columns) table.columns.emplace_back(column.heading);
  for (const CompareRow& row : rows) {
    if (!row.report) continue;
    table.rows.emplace_back();
    for (const ComparedFigure& column : columns) table.rows.back().push_back(column.cell(row));
  }
  return table;
}

std::string ComparisonText(const CompareRequest& request, std::span<const CompareRow> rows,
                           bool costs_given, bool wide) {
  const Table table = ComparisonTable(request, rows, wide);
  std::string rejected;
  for (const CompareRow& row : rows) {
    if (row.report) continue;
    rejected += "rejected: " + row.schedule + ": " + WithFlags(row.rejected) + "\n";
  }
  std::string text = ComparedHead(request, costs_given, true) + "\n";
  if (!table.rows.empty()) text += FormatTable(table) + "\n";
  if (!rejected.empty()) text += rejected + "\n";
  text += NoteOnPairs(request, rows);
  return text + "advice: " + AdviceLines(Advise(rows)) + "\n" + Footer(request, rows, wide);
}

}  // namespace contraflow
