#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "compiler/plan/error.h"
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

std::string PointName(const Point& point) {
  const std::string& limit = point.request.memory_limit;
  return Counted(point.request.spec.microbatches, "micro-batch") +
         (limit.empty() ? "" : ", " + limit);
}

}  // namespace

std::vector<int> ParseMicrobatches(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string& word : Split("--microbatches", text)) {
    int number = 0;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, number);
    if (at != end || error == std::errc::invalid_argument) {
      throw UsageError("compare: --microbatches: must be whole numbers as 32 or 16,32,64, is \"" +
                       text.substr(0, 64) + "\"; see contraflow compare --help");
    }
    if (error != std::errc()) {
      throw UsageError("--microbatches: " + word.substr(0, 64) + " is too " +
                       (word[0] == '-' ? "small" : "large") + ", the limit is " +
                       std::to_string(word[0] == '-' ? INT32_MIN : INT32_MAX));
    }
    AddOnce(number, &numbers);
  }
  return numbers;
}

std::vector<std::string> ParseMemoryLimits(const std::string& text) {
  return Split("--memory-limit", text);
}

std::vector<Point> MakePoints(const CompareFlags& flags, std::vector<std::string>* assumed) {
  const CompareRequest request = ResolveCompare(flags, assumed);
  std::vector<Point> points;
  for (const int microbatches : ParseMicrobatches(flags.microbatches)) {
    for (const std::string& limit : ParseMemoryLimits(flags.memory_limit)) {
      Point& point = points.emplace_back(Point{request, {}});
      point.request.spec.microbatches = microbatches;
      point.request.memory_limit = limit;
      // What no schedule can be blamed for is an error and not a reason to reject it.
      ReadOption([&] {
        NamingCosts(flags.costs, [&] { CheckSpec(point.request.spec); });
        if (flags.memory_limit.empty()) return;
        ParseMemoryLimit(limit, point.request.spec, point.request.spec.ranks);
      });
    }
  }
  return points;
}

std::string SweepText(std::span<const Point> points, bool costs_given) {
  const CompareRequest& request = points.front().request;
  const bool limited = !request.memory_limit.empty();
  const std::vector<std::string> names = ColumnsOf(points);
  Table table;
  table.columns = {">micro-batches"};
  if (limited) table.columns.emplace_back(">memory");
  for (const std::string& name : names) table.columns.push_back(">" + name);
  table.columns.insert(table.columns.end(), {">gap", "  take"});
  std::string advices;
  Time longest = 0;
  for (const Point& point : points) {
    for (const CompareRow& row : point.rows) {
      if (row.report) longest = std::max(longest, row.makespan());
    }
  }
  const TimeScale scale(longest, request.spec.costs.unit);
  for (const Point& point : points) {
    std::vector<std::string>& cells = table.rows.emplace_back();
    cells.push_back(std::to_string(point.request.spec.microbatches));
    if (limited) cells.push_back(point.request.memory_limit);
    const Advice advice = Advise(point.rows);
    std::string gap;
    for (const std::string& name : names) {
      const auto row = std::find_if(point.rows.begin(), point.rows.end(),
                                    [&](const CompareRow& r) { return r.schedule == name; });
      cells.push_back(row->report && row->fits ? scale.Of(row->makespan()) : "-");
      if (row->report && name == advice.schedule) gap = FormatPercent(row->report->gap());
    }
    cells.push_back(gap);
    cells.push_back("  " + (advice.schedule.empty() ? "none" : advice.schedule));
    advices += "advice for " + PointName(point) + ": " + WithFlags(advice.text) + ".\n";
  }
  return Counted(request.spec.ranks, "rank") + "\n" +
         DescribeCostsUsed(request.spec.costs, costs_given) + "\n\n" + FormatTable(table) + "\n" +
         advices +
         "\nThe columns are makespans; -: does not fit.\n"
         "gap: how far the makespan of the schedule to take is above a proven lower bound\n"
         "  for its placement and memory.\n";
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
