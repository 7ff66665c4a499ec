#include "tools/run_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tools/table.h"

namespace contraflow {
namespace {

/// Where instructions have lanes it is the compute lane; without them messages overlap with
/// compute, and all else takes the rank's time, as in Simulate.
bool OnComputeLane(const Plan& plan, Op op) {
  if (plan.level >= Level::kComponent) return LaneOf(op) == Lane::kCompute;
  return WorkOf(op) != Work::kSend && WorkOf(op) != Work::kRecv;
}

double Share(const RunTimes& times, Op op) {
  const auto kind = times.kinds.find(op);
  if (kind == times.kinds.end() || times.busy == 0) return 0;
  return static_cast<double>(kind->second.total) / static_cast<double>(times.busy);
}

/// A mean in the unit, rounded to a tick.
Time Mean(const RunTimes& times, Op op) {
  const auto kind = times.kinds.find(op);
  return kind == times.kinds.end() ? 0 : static_cast<Time>(std::llround(kind->second.mean()));
}

std::string Microseconds(Time nanoseconds) {
  // A tenth is all that a measurement is good for.
  return FormatTime((nanoseconds + 50) / 100 * 100, Unit::kMicroseconds);
}

}  // namespace

void AddTimes(const Plan& plan, const Timeline& timeline, RunTimes* times) {
  Time first = std::numeric_limits<Time>::max();
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      const Op op = plan.programs[r][i].op;
      const Span& span = timeline.ranks[r][i];
      KindTimes& kind = times->kinds[op];
      ++kind.count;
      kind.total += span.end - span.start;
      if (!OnComputeLane(plan, op)) continue;
      times->busy += span.end - span.start;
      first = std::min(first, span.start);
    }
  }
  if (first == std::numeric_limits<Time>::max()) first = 0;
  times->capacity += plan.ranks * (Makespan(timeline) - first);
  ++times->steps;
}

std::string FormatTimes(const Plan& plan, const std::optional<RunTimes>& predicted,
                        const RunTimes& measured) {
  Table table;
  table.columns = {"", ">a step", ">measured us", ">share"};
  const Unit unit = plan.costs ? plan.costs->unit : Unit::kUnit;
  if (predicted) {
    table.columns.push_back(">predicted " + std::string(Name(unit)));
    table.columns.push_back(">share");
  }
  for (const auto& [op, kind] : measured.kinds) {
    const bool lane = OnComputeLane(plan, op);
    std::vector<std::string> row = {std::string(Name(op)), FormatCount(kind.count / measured.steps),
                                    Microseconds(Mean(measured, op)),
                                    lane ? FormatPercent(Share(measured, op)) : "-"};
    if (predicted) {
      row.push_back(FormatTime(Mean(*predicted, op), unit));
      row.push_back(lane ? FormatPercent(Share(*predicted, op)) : "-");
    }
    table.rows.push_back(row);
  }
  std::vector<std::string> bubble = {"bubble ratio", "", "",
                                     FormatPercent(measured.bubble_ratio())};
  if (predicted) {
    bubble.push_back("");
    bubble.push_back(FormatPercent(predicted->bubble_ratio()));
  }
  table.rows.push_back(bubble);
  return FormatTable(table) +
         "Times are means of one instruction; shares are of the time that the ranks compute.\n";
}

void TimesToJson(const Plan& plan, const std::optional<RunTimes>& predicted,
                 const RunTimes& measured, JsonObject* document) {
  const Unit unit = plan.costs ? plan.costs->unit : Unit::kUnit;
  Json::Array rows;
  for (const auto& [op, kind] : measured.kinds) {
    auto row = std::make_unique<JsonObject>();
    row->Add("kind", {std::string(Name(op))});
    row->Add("count", {kind.count / measured.steps});
    row->Add("measured_us", {FromTicks(Mean(measured, op), Unit::kMicroseconds)});
    const bool lane = OnComputeLane(plan, op);
    if (lane) row->Add("measured_share", {Share(measured, op)});
    if (predicted) {
      row->Add("predicted", {FromTicks(Mean(*predicted, op), unit)});
      if (lane) row->Add("predicted_share", {Share(*predicted, op)});
    }
    rows.push_back({std::move(row)});
  }
  document->Add("unit", {std::string(Name(unit))});
  document->Add("kinds", {std::move(rows)});
  auto bubble = std::make_unique<JsonObject>();
  bubble->Add("measured", {measured.bubble_ratio()});
  if (predicted) bubble->Add("predicted", {predicted->bubble_ratio()});
  document->Add("bubble_ratio", {std::move(bubble)});
}

}  // namespace contraflow
