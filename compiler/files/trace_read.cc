#include <cmath>
#include <string>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr JsonLimits kLimits = {
    .bytes = size_t{kMostBytes}, .values = size_t{1} << 26, .members = 64};
/// Microseconds in 100 days.
constexpr double kLongest = 8.64e12;

Time ReadMicroseconds(const JsonCursor& field) {
  return std::llround(field.Number("a time in microseconds", 0, kLongest) * 1000);
}

/// Puts the times of one event where they belong.
void Take(const JsonCursor& event, const Plan& plan, Timeline* timeline) {
  if (event.Required("ph").String("a kind of event") != "X") return;
  const auto rank = static_cast<int>(event.Required("pid").Integer("a rank", 0, plan.ranks - 1));
  const Program& program = plan.program(rank);
  const JsonCursor args = event.Required("args");
  if (program.empty()) event.Fail("rank " + std::to_string(rank) + " has no instructions");
  const int64_t most = static_cast<int64_t>(program.size()) - 1;
  const auto index = static_cast<size_t>(args.Required("index").Integer("an instruction", 0, most));
  const std::string expected = ToString(program[index]);
  const std::string& name = event.Required("name").String("an instruction");
  if (name != expected) {
    event.Fail("is not of this plan: instruction " + std::to_string(index) + " of rank " +
               std::to_string(rank) + " is " + expected + ", not " + name);
  }
  Span& span = timeline->ranks[static_cast<size_t>(rank)][index];
  if (span.start >= 0) event.Fail("repeats " + expected + " of rank " + std::to_string(rank));
  span.start = ReadMicroseconds(event.Required("ts"));
  span.end = span.start + ReadMicroseconds(event.Required("dur"));
}

}  // namespace

Timeline ReadTrace(const std::string& path, const Plan& plan, Unit unit) {
  const JsonDocument document = ParseJson(ReadFile(path, kMostBytes), path, kLimits);
  const JsonCursor root = document.Root();
  if (!root.IsObject()) root.Fail("must be an object with \"traceEvents\"");
  const JsonCursor events = root.Required("traceEvents");
  Timeline timeline{.measured = true, .unit = unit, .ranks = {}};
  for (const Program& program : plan.programs) {
    timeline.ranks.emplace_back(program.size(), Span{-1, -1});
  }
  const size_t count = events.Size("a list of events");
  for (size_t k = 0; k < count; ++k) Take(events.Item(k), plan, &timeline);
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    for (size_t i = 0; i < timeline.ranks[r].size(); ++i) {
      if (timeline.ranks[r][i].start >= 0) continue;
      events.Fail("has no event for instruction " + std::to_string(i) + " (" +
                  ToString(plan.programs[r][i]) + ") of rank " + std::to_string(r) +
                  ": it is not a trace of this plan");
    }
  }
  return timeline;
}

}  // namespace contraflow
