#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/plan/memory_limit.h"
#include "tools/cli/exit.h"
#include "tools/report/comparison.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr int kBar = 24;

/// A bar whose full length is the largest value.
std::string Bar(double value, double largest) {
  const double share = largest > 0 ? value / largest : 0;
  return std::string(static_cast<size_t>(std::max(1.0, share * kBar + 0.5)), '#');
}

/// Reason that it holds less.
std::string Bought(const CompareRow& row) {
  std::string text;
  if (!row.recomputed.empty()) {
    text = std::to_string(row.recomputed.size()) + " of " + Counted(row.stages, "stage");
  }
  if (row.offloaded == 0) return text;
  return text + (text.empty() ? "" : ", ") + Counted(row.offloaded, "cell") + " offloaded";
}

}  // namespace

std::string FrontText(const CompareRequest& request, std::span<const FrontPoint> front,
                      bool costs_given) {
  const std::string head = ComparedHead(request, costs_given, true) + "\n";
  if (front.empty()) return head + "nothing fits\n";
  const bool bytes = CountsBytes(request.spec.costs);
  const Time shortest = front.back().row.makespan();
  const double largest = front.back().memory;
  const TimeScale scale(front.front().row.makespan(), request.spec.costs.unit);
  Table table;
  table.columns = {bytes ? ">total" : ">memory", "", ">makespan", ">longer", "schedule",
                   "recomputed, offloaded"};
  for (const FrontPoint& point : front) {
    const Time makespan = point.row.makespan();
    const double longer =
        shortest > 0 ? static_cast<double>(makespan - shortest) / static_cast<double>(shortest) : 0;
    table.rows.push_back(
        {bytes ? FormatBytes(static_cast<int64_t>(point.memory)) : FormatMultiple(point.row.memory),
         Bar(point.memory, largest), scale.Of(makespan), FormatPercent(longer), NameOf(point.row),
         Bought(point.row)});
  }
  return head + FormatTable(table) + "\n" +
         (bytes ? "total: bytes of all that the fullest rank holds, as far as the costs say.\n"
                : "memory: activations of the fullest rank, as a multiple of what 1F1B holds.\n") +
         "longer: than the shortest. Dominated plans (longer and larger than another) are "
         "omitted.\n";
}

Json FrontToJson(const CompareRequest& request, std::span<const FrontPoint> front) {
  CompareRequest recomputed = request;
  Json array = Json::array();
  for (const FrontPoint& point : front) {
    recomputed.spec.recompute.choice =
        point.row.recomputed.empty() ? request.spec.recompute.choice : Recompute::Choice::kAuto;
    Json row = RowToJson(point.row, recomputed);
    row["memory"] = point.memory;
    if (!point.memory_limit.empty()) row["memory_limit"] = point.memory_limit;
    if (point.device_memory) row["device_memory"] = *point.device_memory;
    array.push_back(std::move(row));
  }
  return array;
}

std::string VariationsText(const CompareRow& now, std::span<const Variation> variations) {
  const Unit unit = now.report->unit;
  const TimeScale scale(now.makespan(), unit);
  std::string text = "What would help, one at a time (now " + FormatWithUnit(now.makespan(), unit) +
                     " with " + NameOf(now) + "):\n";
  Table table;
  table.columns = {"change", ">makespan", ">shorter", "schedule"};
  for (const Variation& variation : variations) {
    const bool memory = variation.name == "memory";
    table.rows.push_back({variation.name + (memory ? " +10 %" : " -10 %"),
                          scale.Of(variation.row.makespan()), FormatPercent(variation.gain),
                          NameOf(variation.row)});
  }
  return text + FormatTable(table);
}

Json VariationsToJson(std::span<const Variation> variations) {
  Json array = Json::array();
  for (const Variation& variation : variations) {
    Json entry = {{"name", variation.name},
                  {"factor", variation.name == "memory" ? 1.1 : 0.9},
                  {"makespan", TimeToJson(variation.row.makespan(), variation.row.report->unit)},
                  {"schedule", variation.row.schedule},
                  {"gain", variation.gain}};
    if (variation.row.provenance) entry["placement"] = variation.row.provenance->placement;
    array.push_back(std::move(entry));
  }
  return array;
}

}  // namespace contraflow
