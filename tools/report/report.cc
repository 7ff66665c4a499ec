#include "tools/report/report.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"

namespace contraflow {
namespace {

/// What is known of a rank's memory, in bytes by kind.
Json MemoryToJson(const MemoryFigures& figures, Level level) {
  auto object = std::make_unique<JsonObject>();
  for (const MemoryKind& kind : MemoryKinds(figures, level)) {
    object->Add(std::string(kind.key), {kind.bytes});
  }
  return {std::move(object)};
}

/// JSON without line breaks; those inside strings are escaped.
std::string OnOneLine(const Json& value) {
  std::string text, line;
  WriteJson(value, &text);
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') {
      line += ' ';
      while (at + 1 < text.size() && text[at + 1] == ' ') ++at;
    } else {
      line += text[at];
    }
  }
  return line;
}

}  // namespace

const std::string_view kFormulaLegend =
    "In formulas, as in the papers: PP ranks, F forward, B the FULL backward (bw), W its weight\n"
    "gradient, F&B a forward overlapped with a full backward (fb). Everywhere else in Contraflow "
    "B\n"
    "is the backward for the input gradient only.\n";

void RequireSound(const Plan& plan, const std::string& path) {
  const std::vector<Finding> findings = Verify(plan);
  if (findings.empty()) return;
  constexpr size_t kShown = 5;
  std::string message = path + ": the plan is not sound";
  for (size_t i = 0; i < std::min(findings.size(), kShown); ++i) {
    message += "\n  " + ToString(findings[i], plan);
  }
  if (findings.size() > kShown) {
    message += "\n  and " + std::to_string(findings.size() - kShown) + " more";
  }
  throw Error(message + "\n  (contraflow verify shows all, and where)");
}

std::vector<MemoryKind> MemoryKinds(const MemoryFigures& figures, Level level) {
  std::vector<MemoryKind> kinds;
  const auto add = [&](std::string_view key, std::string_view title, int64_t bytes) {
    kinds.push_back({key, title, bytes});
  };
  const auto arena = [&](Arena a) { return figures.arenas[static_cast<size_t>(a)]; };
  if (figures.parameters) add("parameters", "parameters", *figures.parameters);
  if (figures.gradients) add("gradients", "gradients", *figures.gradients);
  if (figures.optimizer) add("optimizer", "optimizer", *figures.optimizer);
  add("activations", "activations", arena(Arena::kActivation));
  add("stashes", "stashes", arena(Arena::kStash));
  if (level == Level::kBuffer) {
    add("gradients_in_flight", "in flight", arena(Arena::kGradient));
    add("exchange", "exchange", arena(Arena::kExchange));
  }
  int64_t total = 0;
  for (const MemoryKind& kind : kinds) total += kind.bytes;
  add("total", "total", total);
  return kinds;
}

std::unique_ptr<JsonObject> ReportToJson(const Report& report) {
  const auto time = [&](Time ticks) { return TimeToJson(ticks, report.unit); };
  const Simulation& simulation = report.simulation;
  Json::Array ranks;
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankFigures& figures = simulation.ranks[r];
    auto rank = std::make_unique<JsonObject>();
    rank->Add("rank", {static_cast<int64_t>(r)});
    rank->Add("busy", time(figures.busy));
    rank->Add("bubble", time(figures.bubble));
    rank->Add("peak_activations", {int64_t{figures.peak_activations}});
    rank->Add("peak_bytes", {figures.peak_bytes});
    if (report.components) {
      rank->Add("all_to_all", time(figures.all_to_all));
      rank->Add("exposed", time(figures.exposed));
    }
    if (r < report.memory.size()) {
      rank->Add("memory", MemoryToJson(report.memory[r], report.level));
    }
    ranks.push_back({std::move(rank)});
  }
  auto object = std::make_unique<JsonObject>();
  object->Add("schedule", {report.schedule});
  object->Add("unit", {std::string(Name(report.unit))});
  object->Add("makespan", time(simulation.makespan));
  object->Add("span", time(simulation.span));
  object->Add("bubble_ratio", {simulation.bubble_ratio()});
  object->Add("ranks", {std::move(ranks)});
  if (report.formula) {
    auto formula = std::make_unique<JsonObject>();
    formula->Add("text", {std::string(report.formula->text)});
    formula->Add("bubble", time(report.formula->published));
    formula->Add("holds", {report.formula->holds});
    object->Add("formula", {std::move(formula)});
  }
  object->Add("lower_bound", time(report.bound.value));
  auto bound = std::make_unique<JsonObject>();
  bound->Add("kind", {std::string(Name(report.bound.kind))});
  if (report.bound.rank >= 0) bound->Add("rank", {int64_t{report.bound.rank}});
  if (report.bound.peer >= 0) bound->Add("peer", {int64_t{report.bound.peer}});
  bound->Add("head", time(report.bound.head));
  bound->Add("work", time(report.bound.work));
  bound->Add("idle", time(report.bound.idle));
  bound->Add("tail", time(report.bound.tail));
  object->Add("bound", {std::move(bound)});
  object->Add("gap", {report.gap()});
  return object;
}

std::string FormatJson(const Json& document) {
  const auto& object = *std::get<std::unique_ptr<JsonObject>>(document.value);
  std::string text;
  for (size_t i = 0; i < object.keys.size(); ++i) {
    text += (i == 0 ? "{\n" : ",\n") + QuoteJson(object.keys[i]) + ": ";
    const auto* const items = std::get_if<Json::Array>(&object.values[i].value);
    if (items == nullptr || items->empty()) {
      text += OnOneLine(object.values[i]);
      continue;
    }
    for (size_t k = 0; k < items->size(); ++k) {
      text += (k == 0 ? "[\n" : ",\n") + OnOneLine((*items)[k]);
    }
    text += "\n]";
  }
  return text + "\n}\n";
}

}  // namespace contraflow
