#include "tools/contraflow-run/times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/plan.h"
#include "runtime/host/run.h"
#include "tools/contraflow-run/job.h"
#include "tools/report/text.h"

namespace contraflow {

namespace {

/// True on the compute lane of instructions that have lanes; without them messages and REDUCE run
/// concurrently with compute, as in Simulate.
bool OnComputeLane(const Plan& plan, Op op) {
  if (plan.level >= Level::kComponent) return LaneOf(op) == Lane::kCompute;
  return WorkOf(op) == Work::kCompute || WorkOf(op) == Work::kStep;
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

double RunTimes::gap(const Plan& plan) const {
  if (bound == 0) return 0;
  return static_cast<double>(makespan(plan)) / static_cast<double>(bound) - 1;
}

RunTimes SimulatedTimes(const Plan& plan, const CostModel& costs) {
  RunTimes times;
  AddTimes(plan, Simulate(plan, costs).timeline, &times);
  times.bound = LowerBound(plan, costs);
  return times;
}

void Replay::Add(const Timeline& timeline) {
  constexpr int64_t kMostSpans = int64_t{1} << 20;
  const int64_t most = kMostSpans / std::max<int64_t>(InstructionCount(plan_), 1);
  if (!steps_.empty() && std::cmp_greater_equal(steps_.size(), most)) steps_.pop_front();
  steps_.push_back(timeline);
}

namespace {

/// A rank that does one thing after the other: an exchange is part of the compute that follows it,
/// or else comes before it. Returns the time of all exchanges.
Time JoinExchanges(const Plan& plan, Timeline* timeline) {
  Time joined = 0;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    Time waiting = 0;
    Span* last = nullptr;
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      const Work work = WorkOf(plan.programs[r][i].op);
      Span& span = timeline->ranks[r][i];
      if (work == Work::kAllToAll) {
        waiting += span.end - span.start;
        joined += span.end - span.start;
        span.end = span.start;
      } else if (work == Work::kComponent || work == Work::kStep) {
        span.start -= std::exchange(waiting, 0);
        last = &span;
      }
    }
    if (last != nullptr) last->start -= waiting;
  }
  return joined;
}

}  // namespace

RunTimes Replay::Times(const CostModel& measured_costs) const {
  RunTimes times;
  CostModel costs = measured_costs;
  // Memory that cells hold between F and R was not measured, and times do not depend on it.
  if (!costs.moe && RecomputedCells(plan_).any()) costs.memory.reset();
  for (Timeline step : steps_) {
    const Time joined = lanes_ ? 0 : JoinExchanges(plan_, &step);
    const MeasuredStep measured = {.timeline = step, .reduce_blocks = !lanes_};
    AddTimes(plan_, SimulateMeasured(plan_, costs, measured).timeline, &times);
    times.busy -= joined;  // as in what was measured
  }
  times.bound = LowerBound(plan_, costs);
  return times;
}

std::string FormatTimes(const Plan& plan, const ComparedTimes& times) {
  const auto& [measured, simulated, predicted] = times;
  Table table;
  table.columns = {"", ">per step", ">measured us", ">share"};
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
  Table ends;
  ends.columns = {"", ">measured", ">simulated"};
  std::vector<std::string> makespan = {"makespan", Microseconds(measured.makespan(plan)) + " us",
                                       Microseconds(simulated.makespan(plan)) + " us"};
  std::vector<std::string> bubble = {"bubble ratio", FormatPercent(measured.bubble_ratio()),
                                     FormatPercent(simulated.bubble_ratio())};
  std::vector<std::string> gap = {"gap to the bound", FormatPercent(measured.gap(plan)),
                                  FormatPercent(simulated.gap(plan))};
  if (predicted) {
    ends.columns.push_back(">predicted");
    makespan.push_back(FormatTime(predicted->makespan(plan), unit) + " " +
                       std::string(unit == Unit::kUnit ? "units" : Name(unit)));
    bubble.push_back(FormatPercent(predicted->bubble_ratio()));
    gap.push_back(FormatPercent(predicted->gap(plan)));
  }
  ends.rows = {makespan, bubble, gap};
  return FormatTable(table) + "\n" + FormatTable(ends) +
         "Times are means per instruction; shares are of the ranks' compute time. Simulated: each "
         "step with\nthe times of its own instructions" +
         (predicted ? "; predicted: the plan with its own costs.\n" : ".\n");
}

void TimesToJson(const Plan& plan, const ComparedTimes& times, Json* document) {
  const auto& [measured, simulated, predicted] = times;
  const Unit unit = plan.costs ? plan.costs->unit : Unit::kUnit;
  Json rows = Json::array();
  for (const auto& [op, kind] : measured.kinds) {
    Json row = Json::object();
    row["kind"] = Name(op);
    row["count"] = kind.count / measured.steps;
    row["measured_us"] = FromTicks(Mean(measured, op), Unit::kMicroseconds);
    const bool lane = OnComputeLane(plan, op);
    if (lane) row["measured_share"] = Share(measured, op);
    if (predicted) {
      row["predicted"] = FromTicks(Mean(*predicted, op), unit);
      if (lane) row["predicted_share"] = Share(*predicted, op);
    }
    rows.push_back(std::move(row));
  }
  (*document)["unit"] = Name(unit);
  (*document)["kinds"] = std::move(rows);
  Json bubble = Json::object();
  Json makespan = Json::object();
  Json gap = Json::object();
  bubble["measured"] = measured.bubble_ratio();
  makespan["measured_us"] = FromTicks(measured.makespan(plan), Unit::kMicroseconds);
  gap["measured"] = measured.gap(plan);
  if (measured.steps > 0) {
    bubble["simulated"] = simulated.bubble_ratio();
    makespan["simulated_us"] = FromTicks(simulated.makespan(plan), Unit::kMicroseconds);
    gap["simulated"] = simulated.gap(plan);
  }
  if (predicted) {
    bubble["predicted"] = predicted->bubble_ratio();
    makespan["predicted"] = FromTicks(predicted->makespan(plan), unit);
    gap["predicted"] = predicted->gap(plan);
  }
  (*document)["bubble_ratio"] = std::move(bubble);
  (*document)["makespan"] = std::move(makespan);
  (*document)["gap"] = std::move(gap);
}

namespace {

using Bytes = std::array<int64_t, kArenaCount>;

int64_t Sum(const Bytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

Json ToJson(const Bytes& bytes) {
  Json object = Json::object();
  for (size_t a = 0; a < kArenaCount; ++a) {
    object[Name(static_cast<Arena>(a))] = bytes[a];
  }
  return object;
}

}  // namespace

std::vector<RankArenas> ArenasOf(const Plan& plan, Run& run, Job& job) {
  // A record for each device: its rank, and the bytes of its arenas.
  std::string records;
  for (const Device& device : run.devices()) {
    records += std::to_string(device.rank);
    for (const int64_t bytes : run.At(device).arena_bytes()) records += " " + std::to_string(bytes);
    records += "\n";
  }
  std::vector<RankArenas> ranks;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    ranks.push_back({ArenaBytes(plan.slots[static_cast<size_t>(rank)]), {}});
  }
  for (const std::string& text : job.Gather(records)) {
    std::istringstream lines(text);
    int rank = 0;
    while (lines >> rank) {
      Bytes bytes{};
      for (int64_t& arena : bytes) lines >> arena;
      if (!lines || rank < 0 || rank >= plan.ranks) {
        throw Error("a process tells of arenas that the plan has not");
      }
      Bytes& most = ranks[static_cast<size_t>(rank)].allocated;
      if (Sum(bytes) > Sum(most)) most = bytes;
    }
  }
  return ranks;
}

std::string FormatArenas(const std::vector<RankArenas>& ranks) {
  Table table;
  table.columns = {"bytes"};
  for (size_t a = 0; a < kArenaCount; ++a) {
    table.columns.push_back(">" + std::string(Name(static_cast<Arena>(a))));
  }
  table.columns.insert(table.columns.end(), {">predicted", ">allocated"});
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<std::string> row = {"rank " + std::to_string(r)};
    for (const int64_t bytes : ranks[r].allocated) row.push_back(FormatCount(bytes));
    row.push_back(FormatCount(Sum(ranks[r].predicted)));
    row.push_back(FormatCount(Sum(ranks[r].allocated)));
    table.rows.push_back(std::move(row));
  }
  return FormatTable(table);
}

void ArenasToJson(const std::vector<RankArenas>& ranks, Json* document) {
  Json rows = Json::array();
  for (size_t r = 0; r < ranks.size(); ++r) {
    Json row = Json::object();
    row["rank"] = r;
    row["predicted"] = ToJson(ranks[r].predicted);
    row["allocated"] = ToJson(ranks[r].allocated);
    rows.push_back(std::move(row));
  }
  (*document)["arenas"] = std::move(rows);
}

}  // namespace contraflow
