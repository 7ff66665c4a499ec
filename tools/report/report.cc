#include "tools/report/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"

namespace contraflow {
namespace {

/// Memory known of a rank, in bytes by kind.
Json MemoryToJson(const MemoryFigures& figures, Level level) {
  Json object = Json::object();
  for (const MemoryKind& kind : MemoryKinds(figures, level)) {
    object[kind.key] = kind.bytes;
  }
  return object;
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
    "Formulas use the letters of the papers, for one stage: PP ranks, F forward, B\n"
    "the FULL backward (BW), W its weight gradient, F&B a forward overlapped with a\n"
    "full backward (FB). Everywhere else in Contraflow B is the backward for the\n"
    "input gradient only.\n";

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
  throw Error(message + "\n  (contraflow verify lists all of them, and where)");
}

std::vector<MemoryKind> MemoryKinds(const MemoryFigures& figures, Level level) {
  std::vector<MemoryKind> kinds;
  const auto add = [&](std::string_view key, std::string_view title, int64_t bytes) {
    kinds.push_back({key, title, bytes});
  };
  const auto arena = [&](Arena a) { return figures.arenas[static_cast<size_t>(a)]; };
  if (figures.parameters) add("parameters", "parameters", *figures.parameters);
  if (figures.gathered > 0) add("gathered", "gathered", figures.gathered);
  if (figures.gradients) add("gradients", "gradients", *figures.gradients);
  if (figures.optimizer) add("optimizer", "optimizer", *figures.optimizer);
  if (figures.workspace > 0) add("workspace", "workspace", figures.workspace);
  if (figures.messages > 0) add("messages", "messages", figures.messages);
  add("activations", "activations", arena(Arena::kActivation));
  add("stashes", "stashes", arena(Arena::kStash));
  if (level == Level::kBuffer) {
    add("gradients_in_flight", "in flight", arena(Arena::kGradient));
    add("exchange", "exchange", arena(Arena::kExchange));
  }
  add("total", "total", figures.total());
  return kinds;
}

Json ReportToJson(const Report& report) {
  const auto time = [&](Time ticks) { return TimeToJson(ticks, report.unit); };
  const Simulation& simulation = report.simulation;
  Json ranks = Json::array();
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankFigures& figures = simulation.ranks[r];
    Json rank = Json::object();
    rank["rank"] = r;
    rank["busy"] = time(figures.busy);
    rank["bubble"] = time(figures.bubble);
    rank["peak_activations"] = figures.peak_activations;
    rank["peak_bytes"] = figures.peak_bytes;
    if (report.components) {
      rank["all_to_all"] = time(figures.all_to_all);
      rank["exposed"] = time(figures.exposed);
    }
    if (r < report.memory.size()) {
      rank["memory"] = MemoryToJson(report.memory[r], report.level);
    }
    ranks.push_back(std::move(rank));
  }
  Json object = Json::object();
  object["schedule"] = report.schedule;
  if (!report.partition.empty()) object["partition"] = report.partition;
  object["unit"] = Name(report.unit);
  object["makespan"] = time(simulation.makespan);
  object["span"] = time(simulation.span);
  if (report.without_updates) object["without"] = {"reduce", "step"};
  object["bubble_ratio"] = simulation.bubble_ratio();
  object["ranks"] = std::move(ranks);
  if (report.formula) {
    object["formula"] = {{"text", report.formula->text},
                         {"bubble", time(report.formula->published)},
                         {"holds", report.formula->holds}};
  }
  object["lower_bound"] = time(report.bound.value);
  if (report.any_partition) object["lower_bound_any_partition"] = time(*report.any_partition);
  Json bound = Json::object();
  bound["kind"] = Name(report.bound.kind);
  if (report.bound.rank >= 0) bound["rank"] = report.bound.rank;
  if (report.bound.peer >= 0) bound["peer"] = report.bound.peer;
  bound["head"] = time(report.bound.head);
  bound["work"] = time(report.bound.work);
  bound["idle"] = time(report.bound.idle);
  bound["tail"] = time(report.bound.tail);
  object["bound"] = std::move(bound);
  object["gap"] = report.gap();
  return object;
}

std::string FormatJson(std::string_view report, const Json& document) {
  std::string text = "{\n\"format\": \"contraflow-" + std::string(report) + "\",\n\"version\": 1";
  for (const auto& [key, value] : document.items()) {
    text += ",\n" + QuoteJson(key) + ": ";
    if (!value.is_array() || value.empty()) {
      text += OnOneLine(value);
      continue;
    }
    const char* separator = "[\n";
    for (const Json& item : value) {
      text += separator + OnOneLine(item);
      separator = ",\n";
    }
    text += "\n]";
  }
  return text + "\n}\n";
}

}  // namespace contraflow
