#include "tools/profile/run_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "tools/profile/chrome_trace.h"

namespace contraflow {
namespace {

using Key = std::tuple<Op, int, int, int, int, int>;

Key KeyOf(const Instruction& i) {
  return {i.op, i.stage, i.microbatch, i.back_stage, i.back_microbatch, i.layer};
}

/// Ticks by which slices may overlap that were written with so many digits.
constexpr Time kRounding = 1000;

/// Throws Error unless a rank computes one thing after the other, in the order of its program.
void RequireOrder(const Plan& plan, size_t rank, const std::string& place,
                  std::vector<Span>* spans) {
  const Program& program = plan.programs[rank];
  size_t before = program.size();
  for (size_t i = 0; i < program.size(); ++i) {
    if (LaneOf(program[i].op) != Lane::kCompute) continue;
    Span& span = (*spans)[i];
    const Time free = before == program.size() ? span.start : (*spans)[before].end;
    if (span.start < free - kRounding) {
      throw Error(place + ": rank " + std::to_string(rank) + " runs " + ToString(program[i]) +
                  " before the end of " + ToString(program[before]) +
                  ", which stands before it; give a trace of this plan");
    }
    span.start = std::max(span.start, free);
    span.end = std::max(span.end, span.start);
    before = i;
  }
}

}  // namespace

bool LooksLikeTrace(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  return text[begin] == '[' ||
         text.substr(0, kTraceHead).find("\"traceEvents\"") != std::string_view::npos;
}

std::string MeasuredRun::Note() const {
  std::string note;
  if (steps > 1) note = "step " + std::to_string(steps) + " of " + std::to_string(steps);
  // As compiler/files/trace.h has it.
  if (timeline.unit == Unit::kUnit) {
    note += std::string(note.empty() ? "" : "; ") + "1 unit of the plan is taken as 1 ms";
  }
  return note;
}

MeasuredRun ReadRun(const Plan& plan, const std::vector<TraceText>& traces) {
  std::vector<std::map<Key, int>> indices(plan.programs.size());
  MeasuredRun run{.timeline = {true, plan.costs ? plan.costs->unit : Unit::kUnit, {}}};
  Timeline& timeline = run.timeline;
  std::vector<std::vector<int>> seen;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const Program& program = plan.programs[r];
    for (size_t i = 0; i < program.size(); ++i) indices[r][KeyOf(program[i])] = static_cast<int>(i);
    timeline.ranks.emplace_back(program.size());
    seen.emplace_back(program.size(), 0);
  }
  for (const TraceText& trace : traces) {
    ReadTraceEvents(trace.text, trace.place, [&](const TraceEvent& event) {
      const std::optional<Instruction> what = OwnSlice(event);
      if (!what) return;
      if (event.pid < 0 || event.pid >= plan.ranks) {
        throw Error(trace.place + ": has a slice of rank " + std::to_string(event.pid) +
                    ", the plan has " + std::to_string(plan.ranks) + " ranks; give a trace of it");
      }
      const auto r = static_cast<size_t>(event.pid);
      const auto found = indices[r].find(KeyOf(*what));
      if (found == indices[r].end()) {
        throw Error(trace.place + ": rank " + std::to_string(r) + " runs " + ToString(*what) +
                    ", which is not in its program; give a trace of this plan");
      }
      const auto i = static_cast<size_t>(found->second);
      const auto ticks = [](double microseconds) {
        return static_cast<Time>(std::llround(microseconds * 1000));
      };
      Span& span = timeline.ranks[r][i];
      span = {ticks(event.start), ticks(event.end())};
      // What takes no time is drawn a tick long, so that arrows find it
      // (compiler/files/trace_tracks).
      if (IsMessage(what->op) && span.end == span.start + 1) span.end = span.start;
      run.steps = std::max(run.steps, ++seen[r][i]);
    });
  }
  for (size_t r = 0; r < seen.size(); ++r) {
    for (size_t i = 0; i < seen[r].size(); ++i) {
      if (seen[r][i] > 0) continue;
      throw Error(traces.front().place + ": rank " + std::to_string(r) +
                  " never runs instruction " + std::to_string(i) + " (" +
                  ToString(plan.programs[r][i]) + "); give traces of a whole step of this plan");
    }
    RequireOrder(plan, r, traces.front().place, &timeline.ranks[r]);
  }
  return run;
}

void FitMessages(const Plan& plan, Time makespan, ProfiledCosts* profile) {
  CostModel& costs = profile->costs;
  const Time timed = costs.comm.latency;
  const auto with = [&](Time latency) {
    costs.comm.latency = latency;
    return Simulate(plan, costs, Keep::kFigures).makespan;
  };
  const Time simulated = with(timed);
  if (std::abs(simulated - makespan) <= makespan / 100) return;
  Time fits = 0, over = makespan;
  if (with(fits) > makespan || with(over) <= makespan) {
    costs.comm.latency = timed;
    profile->notes.push_back("simulated with these costs, the plan takes " +
                             FormatWithUnit(simulated, costs.unit) + ", and the run took " +
                             FormatWithUnit(makespan, costs.unit));
    return;
  }
  while (over - fits > 1) {
    const Time middle = fits + (over - fits) / 2;
    (with(middle) <= makespan ? fits : over) = middle;
  }
  costs.comm.latency = fits;
  profile->notes.push_back(
      "a message takes " + FormatWithUnit(fits, costs.unit) +
      ", so that the plan takes as long as the run: launches and a busy processor are in it (of "
      "itself it took " +
      FormatWithUnit(timed, costs.unit) + ")");
}

}  // namespace contraflow
