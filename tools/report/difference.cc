#include "tools/report/difference.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compiler/files/plan_document.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "tools/cli/spec_options.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Ratio of work from which plans are not of one model; recompute of everything stays below.
constexpr double kUnlikeWork = 1.5;

std::optional<PlanFigures> FiguresOf(const Plan& plan) {
  if (!Verify(plan).empty()) return std::nullopt;
  const CostModel costs = CostsForPlan({}, plan);
  PlanFigures figures = FiguresOf(plan, costs.unit, Simulate(plan, costs, Keep::kFigures));
  if (!costs.memory) return figures;
  for (const MemoryFigures& rank : MemoryOf(plan, costs)) {
    figures.total = std::max(figures.total, rank.total());
  }
  return figures;
}

Json FiguresToJson(const std::optional<PlanFigures>& figures) {
  if (!figures) return {{"sound", false}};
  return {{"sound", true},
          {"unit", Name(figures->unit)},
          {"makespan", TimeToJson(figures->makespan, figures->unit)},
          {"bubble_ratio", figures->bubble_ratio},
          {"peak_activations", figures->activations},
          {"peak_bytes", figures->bytes},
          {"total_bytes", figures->total}};
}

/// Time, bubbles and memory of both.
std::string FiguresTable(const std::optional<PlanFigures>& was,
                         const std::optional<PlanFigures>& is) {
  if (!was || !is) {
    return std::string(!was && !is ? "neither plan is sound"
                       : !was      ? "the first plan is not sound"
                                   : "the second plan is not sound") +
           ", so there are no times to compare: see contraflow verify\n";
  }
  Table table;
  table.columns = {"", ">was", ">is", ">change"};
  const auto row = [&](const char* title, std::string left, std::string right,
                       const std::string& change) {
    table.rows.push_back({title, std::move(left), std::move(right), change});
  };
  row("makespan", FormatWithUnit(was->makespan, was->unit), FormatWithUnit(is->makespan, is->unit),
      was->unit == is->unit ? FormatChange(was->makespan, is->makespan) : "");
  const bool alike = was->components == is->components;
  row(alike ? IdleTitle(was->components) : "idle", FormatPercent(was->bubble_ratio),
      FormatPercent(is->bubble_ratio), "");
  row("activations", std::to_string(was->activations), std::to_string(is->activations),
      was->stages == is->stages ? FormatChange(was->activations, is->activations) : "");
  const auto bytes = [&](const char* title, int64_t left, int64_t right) {
    if (left == 0 && right == 0) return;
    row(title, FormatBytes(left), FormatBytes(right), FormatChange(left, right));
  };
  bytes("activation bytes", was->bytes, is->bytes);
  bytes("total bytes", was->total, is->total);
  std::string text = FormatTable(table);
  if (const std::string note = UnlikeWork("the first", *was, "The second plan", *is);
      !note.empty()) {
    text += note + ".\n";
  }
  if (alike) return text;
  return text +
         "The idle shares do not compare: one plan has components, and its compute lane is also\n"
         "idle during exposed all-to-alls. In the other plan all-to-alls count as busy.\n";
}

}  // namespace

PlanFigures FiguresOf(const Plan& plan, Unit unit, const Simulation& run) {
  PlanFigures figures{.unit = unit,
                      .components = plan.layers > 0,
                      .makespan = run.makespan,
                      .bubble_ratio = run.bubble_ratio(),
                      .stages = plan.stages};
  for (const RankFigures& rank : run.ranks) {
    figures.work += rank.busy;
    figures.activations = std::max(figures.activations, rank.peak_activations);
    figures.bytes = std::max(figures.bytes, rank.peak_bytes);
  }
  return figures;
}

std::string UnlikeWork(const std::string& was_name, const PlanFigures& was,
                       const std::string& is_name, const PlanFigures& is) {
  if (was.stages == is.stages || was.unit != is.unit || was.components != is.components ||
      was.work == 0) {
    return "";
  }
  const double ratio = static_cast<double>(is.work) / static_cast<double>(was.work);
  if (ratio < kUnlikeWork && ratio > 1 / kUnlikeWork) return "";
  return is_name + " computes " + FormatReal(std::round(ratio * 100) / 100) + " times as long as " +
         was_name + ": either they are of different models, or each of its " +
         std::to_string(is.stages) + " stages costs as much as one of " +
         std::to_string(was.stages) + "; for one model compile both with --partition even";
}

namespace {

/// The fields above the programs, each a name and its text.
std::vector<std::string> Head(const Plan& plan) {
  std::vector<std::string> lines = {
      "schedule " + plan.schedule,
      "level " + std::string(Name(plan.level)),
      "ranks " + std::to_string(plan.ranks),
      "stages " + std::to_string(plan.stages),
      "micro-batches " + std::to_string(plan.microbatches),
      "data_parallel " + std::to_string(plan.data_parallel),
      "costs " + (plan.costs ? DescribeCosts(*plan.costs) : "none"),
  };
  if (plan.expert_parallel > 1) {
    lines.push_back("expert_parallel " + std::to_string(plan.expert_parallel));
  }
  if (!plan.stage_layers.empty()) {
    std::string line = "stage_layers";
    for (const StageLayers& layers : plan.stage_layers) line += " " + ToString(layers);
    lines.push_back(std::move(line));
  } else if (plan.layers > 0) {
    lines.push_back("layers " + std::to_string(plan.layers));
  }
  if (plan.provenance && plan.costs) {
    std::string line = "provenance ";
    WriteJson(ProvenanceToJson(*plan.provenance, plan.costs->unit), &line);
    lines.push_back(std::move(line));
  }
  for (size_t r = 0; r < plan.routes.size(); ++r) {
    std::string line = "route " + std::to_string(r) + ": ranks";
    for (const int rank : plan.routes[r].ranks) line += " " + std::to_string(rank);
    line += "; micro-batches";
    for (const int m : plan.routes[r].microbatches) line += " " + std::to_string(m);
    lines.push_back(std::move(line));
  }
  return lines;
}

/// The instructions or slots of a rank; none if the plan has no such rank.
template <typename Entry>
std::vector<std::string> Lines(const std::vector<std::vector<Entry>>& ranks, size_t rank) {
  std::vector<std::string> lines;
  if (rank >= ranks.size()) return lines;
  for (const Entry& entry : ranks[rank]) lines.push_back(ToString(entry));
  return lines;
}

/// Lines of edits that begin with the mark, "+" or "-".
int64_t Marked(const std::string& edits, char mark) {
  int64_t count = edits.starts_with(mark) ? 1 : 0;
  for (size_t at = 0; at + 1 < edits.size(); ++at) {
    count += edits[at] == '\n' && edits[at + 1] == mark;
  }
  return count;
}

Json LinesOf(const std::string& edits) {
  Json lines = Json::array();
  for (size_t at = 0; at < edits.size();) {
    const size_t end = edits.find('\n', at);
    lines.push_back(edits.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

Difference Differ(const Plan& left, const Plan& right) {
  Difference difference{.equal = left == right, .was = FiguresOf(left), .is = FiguresOf(right)};
  if (difference.equal) return difference;
  const std::vector<std::string> was = Head(left), is = Head(right);
  difference.fields = FormatEdits(was, is, "plan, field");
  // Costs may differ in details that the line does not show.
  if (left.costs != right.costs && was == is) difference.fields = "@@ costs differ in detail\n";
  for (size_t rank = 0; rank < std::max(left.programs.size(), right.programs.size()); ++rank) {
    const std::string place = "rank " + std::to_string(rank) + ", ";
    Difference::Rank one = {
        static_cast<int>(rank),
        FormatEdits(Lines(left.programs, rank), Lines(right.programs, rank), place + "instruction"),
        FormatEdits(Lines(left.slots, rank), Lines(right.slots, rank), place + "slot")};
    if (!one.instructions.empty() || !one.slots.empty()) {
      difference.ranks.push_back(std::move(one));
    }
  }
  return difference;
}

std::string WriteDifference(const Difference& difference, bool stat) {
  std::string text = FiguresTable(difference.was, difference.is);
  if (!stat) text += difference.fields;
  for (const Difference::Rank& rank : difference.ranks) {
    text += stat ? "rank " + std::to_string(rank.rank) + ": " +
                       std::to_string(Marked(rank.instructions, '-')) + " removed, " +
                       std::to_string(Marked(rank.instructions, '+')) + " added\n"
                 : rank.instructions + rank.slots;
  }
  return text;
}

Json DifferenceToJson(const Difference& difference, bool edits) {
  Json ranks = Json::array();
  for (const Difference::Rank& rank : difference.ranks) {
    Json one = {{"rank", rank.rank},
                {"removed", Marked(rank.instructions, '-')},
                {"added", Marked(rank.instructions, '+')}};
    if (edits) one["edits"] = LinesOf(rank.instructions + rank.slots);
    ranks.push_back(std::move(one));
  }
  Json document = {{"equal", difference.equal},
                   {"was", FiguresToJson(difference.was)},
                   {"is", FiguresToJson(difference.is)}};
  if (edits) document["fields"] = LinesOf(difference.fields);
  document["ranks"] = std::move(ranks);
  return document;
}

}  // namespace contraflow
