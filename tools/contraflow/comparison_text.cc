#include "tools/contraflow/comparison_text.h"

#include <algorithm>
#include <functional>

#include "tools/contraflow/advice.h"
#include "tools/contraflow/costs_option.h"
#include "tools/contraflow/report_text.h"
#include "tools/contraflow/table.h"

namespace contraflow {
namespace {

/// By how much less `now` is than `before`.
std::string Saving(Time now, Time before) {
  if (before == 0) return FormatPercent(0);
  return FormatPercent(static_cast<double>(before - now) / static_cast<double>(before));
}

std::string NameOf(const Row& row) {
  std::string name = row.schedule;
  if (row.provenance) name += " (" + row.provenance->placement + ")";
  return name + (row.same_model ? "" : " *");
}

/// One column of the table: its heading, and what stands in it for a schedule.
struct Column {
  const char* heading;
  std::function<std::string(const Row&)> cell;
};

std::string Bubbles(const Row& row, Unit unit) {
  const auto& ranks = row.report->simulation.ranks;
  const auto [low, high] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.bubble < b.bubble; });
  return FormatRange(low->bubble, high->bubble, unit);
}

std::string FormulaOf(const Row& row, Unit unit) {
  if (!row.report->formula) return "";
  const FormulaFigures& formula = *row.report->formula;
  return std::string(formula.text) + " = " + FormatTime(formula.published, unit) +
         (formula.holds ? "" : ", does not hold");
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

/// What a rank holds and what ranks send.
void AddHoldings(const Question& question, std::span<const Row> rows, bool both,
                 std::vector<Column>* columns) {
  columns->push_back({">activations", [](const Row& row) {
                        return std::to_string(row.report->peak_activations());
                      }});
  if (both) {
    columns->push_back({">published", [](const Row& row) {
                          return std::to_string(row.published->peak_activations());
                        }});
  }
  if (question.spec.costs.memory) {
    columns->push_back(
        {">bytes", [](const Row& row) { return FormatCount(row.report->peak_bytes()); }});
  }
  const auto knows = [&](auto member) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const Row& row) { return (row.*member).has_value(); });
  };
  if (knows(&Row::parameters)) {
    columns->push_back({">parameters", [](const Row& row) {
                          return row.parameters ? FormatCount(*row.parameters) : "";
                        }});
  }
  if (knows(&Row::message_bytes)) {
    columns->push_back({">sent", [](const Row& row) {
                          return row.message_bytes ? FormatCount(*row.message_bytes) : "";
                        }});
  } else {
    columns->push_back({">messages", [](const Row& row) { return FormatCount(row.messages); }});
  }
}

std::vector<Column> Columns(const Question& question, std::span<const Row> rows) {
  const Unit unit = question.spec.costs.unit;
  const auto makespan = [](const Report& report) { return report.simulation.makespan; };
  const bool both = question.components && question.overlap() == Overlap::kAll;
  std::vector<Column> columns = {{"schedule", NameOf}, {">makespan", [=](const Row& row) {
                                                          return FormatTime(row.makespan(), unit);
                                                        }}};
  if (both) {
    columns.push_back(
        {">published", [=](const Row& row) { return FormatTime(makespan(*row.published), unit); }});
    columns.push_back({">shorter", [=](const Row& row) {
                         return Saving(row.makespan(), makespan(*row.published));
                       }});
  }
  columns.push_back(
      {">span", [=](const Row& row) { return FormatTime(row.report->simulation.span, unit); }});
  columns.push_back({">bubble", [=](const Row& row) { return Bubbles(row, unit); }});
  columns.push_back({">ratio", [](const Row& row) {
                       return FormatPercent(row.report->simulation.bubble_ratio());
                     }});
  columns.push_back({">gap", [](const Row& row) { return FormatPercent(row.report->gap()); }});
  if (question.components) {
    columns.push_back({">exposed", [=](const Row& row) {
                         return FormatTime(row.report->largest_exposed(), unit);
                       }});
  }
  AddHoldings(question, rows, both, &columns);
  if (question.recomputes()) {
    columns.push_back({"recomputed", [](const Row& row) { return Ranges(row.recomputed); }});
  }
  if (both) return columns;
  columns.push_back({"formula", [=](const Row& row) { return FormulaOf(row, unit); }});
  return columns;
}

std::string Footer(const Question& question, std::span<const Row> rows) {
  std::string text;
  const bool others = std::any_of(rows.begin(), rows.end(),
                                  [](const Row& row) { return row.report && !row.same_model; });
  if (others) {
    text +=
        "* its ranks hold other numbers of stages, each as long as the costs say: another model, "
        "and\n  no candidate for the advice (auto compares placements for the same model).\n";
  }
  text +=
      "bubble: of a rank, makespan minus busy time.\n"
      "gap: from a proven lower bound for the row's placement and --memory-limit, if given.\n"
      "activations: the most a rank holds at once, from F to the end of W.\n";
  const auto knows = [&](auto member) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const Row& row) { return (row.*member).has_value(); });
  };
  if (knows(&Row::parameters)) text += "parameters: bytes of the rank that holds most.\n";
  text += knows(&Row::message_bytes) ? "sent: bytes between ranks in one step.\n"
                                     : "messages: between ranks in one step.\n";
  if (question.recomputes()) text += "recomputed: the stages that run their forward again.\n";
  if (!question.components) return text + std::string(kFormulaLegend);
  text += "exposed: the most a rank spends in all-to-all while its compute lane is idle.\n";
  if (question.overlap() == Overlap::kPublished) return text + std::string(kFormulaLegend);
  return text +
         "published: the papers' overlap, of F&B pairs only, chunk by chunk (--overlap "
         "published);\n"
         "the other figures are those of components that overlap wherever it makes a step "
         "shorter\n"
         "and no rank holds more than --memory-limit or, without one, than the schedule does.\n";
}

}  // namespace

std::string ComparisonText(const Question& question, std::span<const Row> rows, bool costs_given) {
  const std::vector<Column> columns = Columns(question, rows);
  Table table;
  for (const Column& column : columns) table.columns.emplace_back(column.heading);
  std::string rejected;
  for (const Row& row : rows) {
    if (!row.report) {
      rejected += "rejected: " + row.schedule + ": " + row.rejected + "\n";
      continue;
    }
    table.rows.emplace_back();
    for (const Column& column : columns) table.rows.back().push_back(column.cell(row));
  }
  std::string text = std::to_string(question.spec.ranks) + " ranks, " +
                     std::to_string(question.spec.microbatches) + " micro-batches\n" +
                     DescribeCostsUsed(question.spec.costs, costs_given) + "\n\n";
  if (!table.rows.empty()) text += FormatTable(table) + "\n";
  if (!rejected.empty()) text += rejected + "\n";
  return text + "advice: " + Advise(rows).text + ".\n\n" + Footer(question, rows);
}

}  // namespace contraflow
