#include <algorithm>
#include <functional>

#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/compile.h"
#include "schedules/partition/stages.h"
#include "schedules/published/rows.h"
#include "tools/cli/exit.h"
#include "tools/report/comparison.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// One column of the table: its heading, the text of a schedule's cell, and a legend or "".
struct ComparedFigure {
  const char* heading;
  std::function<std::string(const CompareRow&)> cell;
  std::string legend = {};
};

/// Bubbles of ranks, the lowest to the highest.
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

/// "3 of 16", or "none".
std::string ShareOfStages(const CompareRow& row) {
  if (row.recomputed.empty()) return "none";
  return std::to_string(row.recomputed.size()) + " of " + std::to_string(row.stages);
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

/// Columns of one comparison, in their order.
class ComparedColumns {
 public:
  ComparedColumns(const CompareRequest& request, std::span<const CompareRow> rows, bool wide)
      : request_(request), rows_(rows), scale_(Longest(rows), request.spec.costs.unit) {
    AddTimes(wide);
    AddMemory(wide);
    AddGap();
    if (wide) AddMessages();
    if (request.recomputes()) AddRecomputed(wide);
    if (!wide || !ShowsFormulas(request, rows)) return;
    const Unit unit = request.spec.costs.unit;
    Add(
        "formula", [=](const CompareRow& row) { return FormulaOf(row, unit); },
        "formula: the published bubble of a rank, and whether it holds for these costs.\n" +
            std::string(kFormulaLegend));
  }

  const std::vector<ComparedFigure>& all() const { return columns_; }

 private:
  using Cell = std::function<std::string(const CompareRow&)>;

  static Time Longest(std::span<const CompareRow> rows) {
    Time longest = 0;
    for (const CompareRow& row : rows) {
      if (row.report) longest = std::max(longest, row.makespan());
      if (row.published) longest = std::max(longest, row.published->simulation.makespan);
    }
    return longest;
  }

  void Add(const char* heading, Cell cell, std::string legend = {}) {
    columns_.push_back({heading, std::move(cell), std::move(legend)});
  }

  bool Knows(std::optional<int64_t> CompareRow::*figure) const {
    return std::ranges::any_of(rows_,
                               [&](const CompareRow& row) { return (row.*figure).has_value(); });
  }

  void AddTimes(bool wide) {
    const TimeScale scale = scale_;
    const CompareRow* const advised = Advise(rows_).row;
    Add(
        "schedule",
        [=](const CompareRow& row) { return NameOf(row) + (&row == advised ? " *" : ""); },
        advised != nullptr ? "*: the schedule that the advice names.\n" : "");
    Add(">step", [=](const CompareRow& row) { return scale.Of(row.makespan()); });
    const auto base = std::ranges::find_if(
        rows_, [](const CompareRow& row) { return row.report && row.schedule == kOneFOneB.name; });
    if (base != rows_.end() && rows_.size() > 1) {
      const Time before = base->makespan();
      Add(">vs 1F1B", [=](const CompareRow& row) { return FormatChange(before, row.makespan()); });
    }
    if (wide && OverlapsFurther(request_)) {
      Add(
          ">published",
          [=](const CompareRow& row) { return scale.Of(row.published->simulation.makespan); },
          "published: the step with the papers' overlap alone, of a forward with a backward\n"
          "  (--overlap published).\n");
    }
    const bool lane = request_.components;
    Add(
        lane ? ">compute idle" : ">bubble",
        [](const CompareRow& row) { return FormatPercent(row.report->simulation.bubble_ratio()); },
        lane ? "compute idle: time in which compute lanes idle, as a share of all ranks' time.\n"
             : "bubble: time in which ranks idle, as a share of all ranks' time.\n");
    if (!wide) return;
    Add(
        ">of each rank", [=](const CompareRow& row) { return Bubbles(row, scale); },
        "of each rank: the step minus a rank's busy time, lowest to highest.\n");
    Add(
        ">span", [=](const CompareRow& row) { return scale.Of(row.report->simulation.span); },
        "span: the longest time from a rank's first start to its last end.\n");
    if (!lane) return;
    Add(
        ">exposed", [=](const CompareRow& row) { return scale.Of(row.report->largest_exposed()); },
        "exposed: the longest time for which a rank is in all-to-all with its compute\n"
        "  lane idle.\n");
  }

  void AddMemory(bool wide) {
    Add(
        ">memory", [](const CompareRow& row) { return FormatMultiple(row.memory); },
        "memory: activations of the fullest rank, as a multiple of what 1F1B holds.\n");
    if (wide) {
      Add(
          ">activations",
          [](const CompareRow& row) { return std::to_string(row.report->peak_activations()); },
          "activations: the most a rank holds at once, each of one of its stages, from F\n"
          "  to the end of W.\n");
    }
    const bool total = Knows(&CompareRow::parameters) || !DevicesOf(request_.spec).empty();
    if (ShowsBytes(request_.spec.costs) && (wide || !total)) {
      Add(
          ">bytes", [](const CompareRow& row) { return FormatBytes(row.report->peak_bytes()); },
          "bytes: the most that a rank's activations take at once. B frees part of an\n"
          "  activation, W the rest, its weight stash.\n");
    }
    if (wide && Knows(&CompareRow::parameters)) {
      Add(
          ">parameters",
          [](const CompareRow& row) { return row.parameters ? FormatBytes(*row.parameters) : ""; },
          "parameters: bytes of the rank that holds the most.\n");
    }
    if (total) {
      Add(
          ">total", [](const CompareRow& row) { return row.total ? FormatBytes(*row.total) : ""; },
          "total: bytes of all that the fullest rank holds: parameters, gradients,\n"
          "  optimizer state, activations, messages and workspace, as far as the costs say.\n");
    }
    if (!ShowsFits(request_, rows_)) return;
    Add(
        "fits", [](const CompareRow& row) { return row.fits ? "yes" : "no"; },
        DevicesOf(request_.spec).empty() ? "fits: no rank holds more than the limit.\n"
                                         : "fits: every rank's total fits its device.\n");
  }

  void AddGap() {
    const bool layers = !request_.spec.costs.layers.empty();
    Add(
        ">gap", [](const CompareRow& row) { return FormatPercent(row.report->gap()); },
        "gap: how far the step is above a proven lower bound on any order of the row's\n"
        "  placement and memory limit" +
            std::string(layers ? " and its partition" : "") +
            ", also on orders that split the backward.\n");
  }

  void AddMessages() {
    if (Knows(&CompareRow::message_bytes)) {
      Add(
          ">sent",
          [](const CompareRow& row) {
            return row.message_bytes ? FormatBytes(*row.message_bytes) : "";
          },
          "sent: bytes between ranks in one step.\n");
    } else {
      Add(
          ">messages", [](const CompareRow& row) { return FormatCount(row.messages); },
          "messages: how many are sent between ranks in one step.\n");
    }
  }

  void AddRecomputed(bool wide) {
    if (wide) {
      Add(
          "recomputed", [](const CompareRow& row) { return Ranges(row.recomputed); },
          "recomputed: the stages that run their forward again.\n");
    } else {
      Add(">recomputed", ShareOfStages, "recomputed: how many stages run their forward again.\n");
    }
  }

  const CompareRequest& request_;
  std::span<const CompareRow> rows_;
  TimeScale scale_;
  std::vector<ComparedFigure> columns_;
};

/// The legend of the columns, and the level of the rows where that is not the least.
std::string Footer(const CompareRequest& request, const ComparedColumns& columns, bool wide) {
  std::string text;
  for (const ComparedFigure& column : columns.all()) text += column.legend;
  if (std::ranges::any_of(request.spec.costs.layers, IsMoe)) {
    text +=
        "All rows are at level comm: components of MoE layers overlap within a chunk or a\n"
        "  pair alone. compile --level component makes plans in which all of them may.\n";
  }
  if (request.components) {
    text +=
        "All rows are at level component, as these are MoE costs (compile --level component\n"
        "  makes these plans).\n";
  }
  if (OverlapsFurther(request)) {
    text +=
        "Components overlap if that shortens the step and no rank exceeds --memory-limit or,\n"
        "  without one, the schedule's own peak. Runs of forwards (gpipe) hide most of their\n"
        "  all-to-all; the papers' order is that of --overlap published.\n";
  }
  if (!wide) text += "--wide adds columns; --csv and --json have every figure in full.\n";
  return text;
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

namespace {

Table TableOf(const ComparedColumns& columns, std::span<const CompareRow> rows) {
  Table table;
  for (const ComparedFigure& column : columns.all()) table.columns.emplace_back(column.heading);
  for (const CompareRow& row : rows) {
    if (!row.report) continue;
    table.rows.emplace_back();
    for (const ComparedFigure& column : columns.all())
      table.rows.back().push_back(column.cell(row));
  }
  return table;
}

}  // namespace

Table ComparisonTable(const CompareRequest& request, std::span<const CompareRow> rows, bool wide) {
  return TableOf(ComparedColumns(request, rows, wide), rows);
}

std::string ComparisonText(const CompareRequest& request, std::span<const CompareRow> rows,
                           bool costs_given, bool wide) {
  const ComparedColumns columns(request, rows, wide);
  const Table table = TableOf(columns, rows);
  std::string rejected;
  for (const CompareRow& row : rows) {
    if (row.report) continue;
    rejected += "rejected: " + row.schedule + ": " + WithFlags(row.rejected) + "\n";
  }
  std::string text = ComparedHead(request, costs_given, true) + "\n";
  if (!table.rows.empty()) text += FormatTable(table) + "\n";
  if (!rejected.empty()) text += rejected + "\n";
  text += NoteOnPairs(request, rows);
  const Advice advice = Advise(rows);
  text += "advice: " + AdviceLines(advice);
  const CostModel& costs = request.spec.costs;
  if (advice.row != nullptr && std::cmp_greater(advice.row->stages, costs.stages.size()) &&
      ListsUnlikeStages(costs)) {
    text +=
        "  Its stages are parts of the unlike stages of these costs: list layers where one cannot "
        "be\n  cut, such as a head.\n";
  }
  return text + "\n" + Footer(request, columns, wide);
}

}  // namespace contraflow
