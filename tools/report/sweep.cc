#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/compile.h"
#include "tools/cli/exit.h"
#include "tools/report/comparison.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr size_t kMostEntries = 64;

template <typename Value>
void AddOnce(const Value& value, std::vector<Value>* list) {
  if (std::find(list->begin(), list->end(), value) == list->end()) list->push_back(value);
}

std::vector<std::string> Split(const std::string& flag, const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    AddOnce(list.substr(begin, end - begin), &words);
    begin = end + 1;
  }
  if (words.size() > kMostEntries) {
    throw UsageError(flag + ": at most " + std::to_string(kMostEntries) +
                     " are compared at once, has " + std::to_string(words.size()));
  }
  return words;
}

/// The schedules that fit at some point and run the same model, in the order of the rows.
std::vector<std::string> ColumnsOf(std::span<const Point> points) {
  std::vector<std::string> names;
  for (const CompareRow& first : points.front().rows) {
    const bool fits = std::any_of(points.begin(), points.end(), [&](const Point& point) {
      return std::any_of(point.rows.begin(), point.rows.end(), [&](const CompareRow& row) {
        return row.schedule == first.schedule && row.report && row.fits;
      });
    });
    if (fits) names.push_back(first.schedule);
  }
  return names;
}

/// "1x", or "none".
std::string LimitName(const CompareRequest& request) {
  return request.memory_limit.empty() ? "none" : request.memory_limit;
}

/// Costs of micro-batches this many times as large: times and bytes, but for latencies with a
/// bandwidth.
void ScaleMicrobatch(double factor, CostModel* costs) {
  const auto scale = [factor](auto&... amounts) {
    ((amounts = std::llround(static_cast<double>(amounts) * factor)), ...);
  };
  const auto scale_all = [&](auto& amounts) { std::ranges::for_each(amounts, scale); };
  const auto scale_stage = [&](StageCost& cost) {
    scale(cost.f, cost.b, cost.w, cost.bw, cost.fb);
    if (cost.r > 0) scale(cost.r);
  };
  const auto scale_moe = [&](MoeCost& moe) {
    for (const ComponentCost& component : kComponentCosts) scale_all(moe.*component.times);
    std::ranges::for_each(moe.values, scale_all);
  };
  std::ranges::for_each(costs->stages, scale_stage);
  for (LayerCost& layer : costs->layers) {
    scale_stage(layer.cost);
    if (layer.moe) scale_moe(*layer.moe);
    scale(layer.activation_bytes, layer.w_stash_bytes, layer.output_bytes);
  }
  if (costs->moe) scale_moe(*costs->moe);
  std::ranges::for_each(costs->stage_moe, scale_moe);
  scale(costs->comm.bytes, costs->comm.occupancy, costs->tokens);
  if (!costs->comm.exclusive()) scale(costs->comm.latency);
  if (costs->host && costs->host->bandwidth == 0) scale(costs->host->latency);
  if (!costs->memory) return;
  MemoryCost& memory = *costs->memory;
  scale(memory.activation_bytes, memory.w_stash_bytes);
  if (memory.input_bytes > 0) scale(memory.input_bytes);
  for (auto* list : {&memory.activation_of, &memory.stash_of, &memory.values}) scale_all(*list);
}

/// The number of micro-batches of a step of --global-batch, of costs that are of `first` of them.
void KeepBatch(int64_t batch, int first, CompareRequest* request) {
  Spec& spec = request->spec;
  const int64_t parts =
      int64_t{spec.microbatches} * spec.data_parallel * ParallelOf(spec).batches();
  if (batch < 1 || batch % parts != 0) {
    throw UsageError("`global_batch`: " + std::to_string(batch) + " samples are no multiple of " +
                     Counted(parts, "micro-batch") +
                     ", of all replicas; give another `microbatches`");
  }
  request->global_batch = batch;
  request->samples = batch / parts;
  if (spec.microbatches == first) return;
  ScaleMicrobatch(static_cast<double>(first) / spec.microbatches, &spec.costs);
}

std::string PointName(const Point& point, bool limited) {
  return Counted(point.request.spec.microbatches, "micro-batch") +
         (limited ? ", " + LimitName(point.request) : "");
}

/// The row of a schedule that fits at a point, or null.
const CompareRow* FittingRow(const Point& point, const std::string& schedule) {
  const auto row = std::ranges::find(point.rows, schedule, &CompareRow::schedule);
  return row != point.rows.end() && row->report && row->fits ? &*row : nullptr;
}

Time LongestOf(std::span<const Point> points) {
  Time longest = 0;
  for (const Point& point : points) {
    for (const CompareRow& row : point.rows) {
      if (row.report) longest = std::max(longest, row.makespan());
    }
  }
  return longest;
}

/// A line for each schedule, a column for each point.
template <typename Figure>
Table BySchedule(std::span<const Point> points, const std::vector<std::string>& names, bool limited,
                 const Figure& figure) {
  Table table{{"schedule"}, {}};
  for (const Point& point : points) {
    const std::string microbatches = ">M " + std::to_string(point.request.spec.microbatches);
    table.columns.push_back(microbatches + (limited ? ", " + LimitName(point.request) : ""));
  }
  for (const std::string& name : names) {
    table.rows.push_back({name});
    for (const Point& point : points) {
      const CompareRow* const row = FittingRow(point, name);
      table.rows.back().push_back(row == nullptr ? "-" : figure(*row));
    }
  }
  return table;
}

/// The schedule to take at each point, a line each.
Table Taken(std::span<const Point> points, bool limited, const TimeScale& scale) {
  Table table{{">micro-batches"}, {}};
  if (limited) table.columns.emplace_back(">memory");
  const bool lane = points.front().request.components;
  table.columns.insert(table.columns.end(),
                       {"take", ">step", lane ? ">compute idle" : ">bubble", ">gap"});
  for (const Point& point : points) {
    std::vector<std::string>& cells =
        table.rows.emplace_back(1, std::to_string(point.request.spec.microbatches));
    if (limited) cells.push_back(LimitName(point.request));
    const CompareRow* const taken = Advise(point.rows).row;
    if (taken == nullptr) {
      cells.emplace_back("none");
      continue;
    }
    cells.insert(cells.end(), {NameOf(*taken), scale.Of(taken->makespan()),
                               FormatPercent(taken->report->simulation.bubble_ratio()),
                               FormatPercent(taken->report->gap())});
  }
  return table;
}

}  // namespace

std::vector<int> ParseMicrobatches(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string& word : Split("`microbatches`", text)) {
    int number = 0;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, number);
    if (at != end || error == std::errc::invalid_argument) {
      throw UsageError("compare: `microbatches`: must be whole numbers as 32 or 16,32,64, is \"" +
                       text.substr(0, 64) + "\"; see contraflow compare --help");
    }
    if (error != std::errc()) {
      throw UsageError("`microbatches`: " + word.substr(0, 64) + " is too " +
                       (word[0] == '-' ? "small" : "large") + ", the limit is " +
                       std::to_string(word[0] == '-' ? INT32_MIN : INT32_MAX));
    }
    AddOnce(number, &numbers);
  }
  return numbers;
}

std::vector<std::string> ParseMemoryLimits(const std::string& text) {
  return Split("`memory_limit`", text);
}

std::vector<Point> MakePoints(const CompareFlags& flags, std::vector<std::string>* assumed) {
  const CompareRequest request = ResolveCompare(flags, assumed);
  std::vector<Point> points;
  const std::vector<int> numbers = ParseMicrobatches(flags.microbatches);
  for (const int microbatches : numbers) {
    for (const std::string& limit : ParseMemoryLimits(flags.memory_limit)) {
      Point& point = points.emplace_back(Point{request, {}});
      point.request.spec.microbatches = microbatches;
      point.request.memory_limit = limit == "none" ? "" : limit;
      if (flags.memory_limit.empty() && DevicesOf(request.spec).empty()) {
        point.request.assumed_limit = true;
        point.request.memory_limit = "1x";
      }
      // An error that no schedule can be blamed for is an error and not a reason to reject it.
      ReadOption([&] {
        NamingCosts(flags.costs, [&] { CheckSpec(point.request.spec); });
        const std::string& text = point.request.memory_limit;
        if (text.empty()) return;
        // A multiple that leaves no room for one schedule may leave some for another.
        const int stages = text.ends_with('x') ? kMaxStages : point.request.spec.ranks;
        ParseMemoryLimit(text, point.request.spec, stages);
      });
      if (flags.global_batch) KeepBatch(*flags.global_batch, numbers.front(), &point.request);
      // The head says how much it is; an assumed limit is found with the rows.
      if (!point.request.assumed_limit && point.request.memory_limit.ends_with('x')) {
        point.request.held_by_1f1b = HeldBy1F1B(point.request.spec);
      }
    }
  }
  return points;
}

std::string SweepText(std::span<const Point> points, bool costs_given, bool wide) {
  const CompareRequest& request = points.front().request;
  const bool limited = std::ranges::any_of(points, [&](const Point& point) {
    return point.request.memory_limit != request.memory_limit;
  });
  const TimeScale scale(LongestOf(points), request.spec.costs.unit);
  std::string advices;
  for (const Point& point : points) {
    advices += "advice for " + PointName(point, limited) + ": " + AdviceLines(Advise(point.rows));
  }
  const std::vector<std::string> names = ColumnsOf(points);
  std::string nowhere;
  for (const CompareRow& row : points.front().rows) {
    if (std::ranges::count(names, row.schedule) > 0) continue;
    nowhere += (nowhere.empty() ? "fit nowhere: " : ", ") + row.schedule;
  }
  if (!nowhere.empty()) nowhere += "\n";
  CompareRequest head = request;
  if (limited) {
    head.memory_limit.clear();
    head.assumed_limit = false;
  }
  const bool kept = request.global_batch > 0;
  const Table steps = BySchedule(points, names, limited,
                                 [&](const CompareRow& row) { return scale.Of(row.makespan()); });
  std::string text = ComparedHead(head, costs_given, false) + "\nSchedules to take:\n" +
                     FormatTable(Taken(points, limited, scale)) + "\nSteps" +
                     (kept ? ", of the whole batch" : "") + ":\n" + FormatTable(steps);
  if (wide) {
    text += (request.components ? "\nCompute idle" : "\nBubbles") +
            std::string(", as a share of all ranks' time:\n") +
            FormatTable(BySchedule(points, names, limited, [](const CompareRow& row) {
              return FormatPercent(row.report->simulation.bubble_ratio());
            }));
  }
  return text + nowhere + "\n" + NoteOnPairs(request, points.front().rows) + advices +
         "\n-: does not fit.\n"
         "gap: how far the step is above a proven lower bound on any order of its\n"
         "  placement and memory limit, also on orders that split the backward.\n" +
         (kept ? "The costs are of a micro-batch of " + FormatCount(request.samples) +
                     (request.samples == 1 ? " sample" : " samples") +
                     ", that of the first line; those of others scale with it.\n"
               : std::string()) +
         (wide ? "" : "--wide adds the bubbles; --csv and --json have every figure in full.\n");
}

std::string SweepJson(std::span<const Point> points) {
  Json points_json = Json::array();
  for (const Point& point : points) {
    Json object = Json::object();
    object["microbatches"] = point.request.spec.microbatches;
    if (!point.request.memory_limit.empty()) {
      object["memory_limit"] = point.request.memory_limit;
    }
    object.update(ComparisonToJson(point.request, point.rows));
    points_json.push_back(std::move(object));
  }
  return FormatJson("compare", {{"points", points_json}});
}

std::string SweepCsv(std::span<const Point> points) {
  std::string text = ComparisonCsvHeader();
  for (const Point& point : points) text += ComparisonCsv(point.request, point.rows);
  return text;
}

}  // namespace contraflow
