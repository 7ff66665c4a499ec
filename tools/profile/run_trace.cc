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

/// Ticks by which slices may overlap that were written with this many digits.
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

/// Puts the slices of traces where they belong in a plan.
class RunReader {
 public:
  explicit RunReader(const Plan& plan)
      : plan_(plan),
        indices_(plan.programs.size()),
        files_(plan.programs.size()),
        run_{.timeline = {true, plan.costs ? plan.costs->unit : Unit::kUnit, {}}, .notes = {}} {
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      const Program& program = plan.programs[r];
      for (size_t i = 0; i < program.size(); ++i) {
        indices_[r][KeyOf(program[i])] = static_cast<int>(i);
      }
      run_.timeline.ranks.emplace_back(program.size());
      seen_.emplace_back(program.size(), 0);
    }
  }

  void Read(const TraceText& trace) {
    bool torch = false;
    ReadTraceEvents(trace.text, trace.place, [&](const TraceEvent& event) {
      torch =
          torch || event.category == "user_annotation" || event.category == "gpu_user_annotation";
      if (torch) return;
      const std::optional<Instruction> what = OwnSlice(event);
      if (!what) return;
      if (event.pid < 0 || event.pid >= plan_.ranks) {
        throw Error(trace.place + ": has a slice of rank " + std::to_string(event.pid) +
                    ", the plan has " + std::to_string(plan_.ranks) + " ranks; give a trace of it");
      }
      Span span = {Ticks(event.start), Ticks(event.end())};
      // An instruction without time is drawn a tick long, so that arrows find it
      // (compiler/files/trace_tracks).
      if (IsMessage(what->op) && span.end == span.start + 1) span.end = span.start;
      Put(trace.place, static_cast<size_t>(event.pid), *what, span);
    });
    if (torch) ReadTorch(trace);
  }

  MeasuredRun Finish(const std::string& place) {
    if (torch_) MakeUntimed();
    for (size_t r = 0; r < seen_.size(); ++r) {
      for (size_t i = 0; i < seen_[r].size(); ++i) {
        if (seen_[r][i] > 0) continue;
        throw Error(place + ": rank " + std::to_string(r) + " never runs instruction " +
                    std::to_string(i) + " (" + ToString(plan_.programs[r][i]) +
                    "); give traces of a whole step of this plan");
      }
      RequireOrder(plan_, r, place, &run_.timeline.ranks[r]);
    }
    return std::move(run_);
  }

 private:
  static Time Ticks(double microseconds) {
    return static_cast<Time>(std::llround(microseconds * 1000));
  }

  void Put(const std::string& place, size_t r, const Instruction& what, Span span) {
    const auto found = indices_[r].find(KeyOf(what));
    if (found == indices_[r].end()) {
      throw Error(place + ": rank " + std::to_string(r) + " runs " + ToString(what) +
                  ", which is not in its program; give a trace of this plan");
    }
    const auto i = static_cast<size_t>(found->second);
    run_.timeline.ranks[r][i] = span;
    run_.steps = std::max(run_.steps, ++seen_[r][i]);
  }

  /// A trace of PyTorch's profiler, of the rank of the plan that has the stages in it.
  void ReadTorch(const TraceText& trace) {
    const FileSamples file = ReadTraceSamples(trace.text, trace.place);
    if (file.samples.empty()) {
      throw Error(trace.place +
                  ": has no range of an instruction, such as PP:0F3; give a trace of PyTorch's "
                  "runtime of schedules");
    }
    const int stage = std::max(0, file.samples.front().what.stage);
    if (stage >= plan_.stages || plan_.routes.size() != 1) {
      throw Error(trace.place + ": has a stage " + std::to_string(stage) +
                  " of a schedule with one route; give a trace of this plan");
    }
    const auto r = static_cast<size_t>(plan_.routes[0].ranks[static_cast<size_t>(stage)]);
    if (!files_[r].empty()) {
      throw Error(trace.place + ": runs stage " + std::to_string(stage) + ", as " + files_[r] +
                  " does; give the traces of one replica");
    }
    files_[r] = trace.place;
    torch_ = true;
    for (const Sample& sample : file.samples) {
      Put(trace.place, r, sample.what, {Ticks(sample.end - sample.time), Ticks(sample.end)});
    }
    for (const MessageEnd& end : file.messages) {
      Put(trace.place, r, end.what, {Ticks(end.start), Ticks(end.end)});
    }
    run_.notes.insert(run_.notes.end(), file.notes.begin(), file.notes.end());
  }

  /// A forward or else a backward of a stage and a micro-batch.
  using Cell = std::tuple<bool, int, int>;

  /// A message lasts from its SEND to the end of its RECV; where these have no range, from the end
  /// of what makes its data to the start of what needs it. R, REDUCE and STEP have no range, and
  /// end with the computation before them.
  void MakeUntimed() {
    std::map<Cell, Span> cells;
    for (size_t r = 0; r < seen_.size(); ++r) {
      Time before = 0;
      for (size_t i = 0; i < seen_[r].size(); ++i) {
        const Instruction& what = plan_.programs[r][i];
        Span& span = run_.timeline.ranks[r][i];
        if (seen_[r][i] == 0 &&
            (what.op == Op::R || what.op == Op::REDUCE || what.op == Op::STEP)) {
          span = {before, before};
          seen_[r][i] = 1;
        }
        if (LaneOf(what.op) == Lane::kCompute) before = std::max(before, span.end);
        if (HasForward(what.op)) cells[{true, what.stage, what.microbatch}] = span;
        if (HasBackward(what.op)) cells[{false, BackStage(what), BackMicrobatch(what)}] = span;
      }
    }
    bool untimed = false, clocks = false;
    for (size_t r = 0; r < seen_.size(); ++r) {
      for (size_t i = 0; i < seen_[r].size(); ++i) {
        const Instruction& send = plan_.programs[r][i];
        if (!IsSend(send.op)) continue;
        const bool forward = send.op == Op::SEND_F;
        const int to = send.stage + (forward ? 1 : -1);
        const auto peer = static_cast<size_t>(send.peer);
        const auto at = static_cast<size_t>(indices_[peer].at(
            KeyOf(Message(forward ? Op::RECV_F : Op::RECV_B, to, send.microbatch, -1))));
        Span &sent = run_.timeline.ranks[r][i], &received = run_.timeline.ranks[peer][at];
        untimed = untimed || seen_[r][i] == 0 || seen_[peer][at] == 0;
        if (seen_[r][i] == 0) sent.start = cells[{forward, send.stage, send.microbatch}].end;
        if (seen_[peer][at] == 0) {
          received = {sent.start, cells[{forward, to, send.microbatch}].start};
        }
        clocks = clocks || received.end < sent.start;
        sent.end = received.end = std::max(sent.start, received.end);
        seen_[r][i] = seen_[peer][at] = 1;
      }
    }
    if (untimed) run_.notes.emplace_back("a message that was not timed lasts until it is needed");
    if (clocks) {
      run_.notes.emplace_back("a message comes before it is sent: the clocks of ranks differ");
    }
  }

  const Plan& plan_;
  std::vector<std::map<Key, int>> indices_;
  std::vector<std::string> files_;  ///< of each rank, of traces of PyTorch
  std::vector<std::vector<int>> seen_;
  bool torch_ = false;
  MeasuredRun run_;
};

}  // namespace

bool LooksLikeTrace(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  return text[begin] == '[' ||
         text.substr(0, kTraceHead).find("\"traceEvents\"") != std::string_view::npos;
}

std::string MeasuredRun::Note() const {
  std::string note;
  const auto add = [&](const std::string& more) { note += (note.empty() ? "" : "; ") + more; };
  if (steps > 1) add("step " + std::to_string(steps) + " of " + std::to_string(steps));
  // Same as in compiler/files/trace.h.
  if (timeline.unit == Unit::kUnit) add("1 unit of the plan is taken as 1 ms");
  for (size_t i = 0; i < notes.size(); ++i) {
    if (std::find(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(i), notes[i]) ==
        notes.begin() + static_cast<std::ptrdiff_t>(i)) {
      add(notes[i]);
    }
  }
  return note;
}

MeasuredRun ReadRun(const Plan& plan, const std::vector<TraceText>& traces) {
  RunReader reader(plan);
  for (const TraceText& trace : traces) reader.Read(trace);
  return reader.Finish(traces.front().place);
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
  profile->notes.push_back("a message takes " + FormatWithUnit(fits, costs.unit) +
                           ", so that the plan takes as long as the run: launches and a busy "
                           "processor are in it (of itself it took " +
                           FormatWithUnit(timed, costs.unit) + ")");
}

}  // namespace contraflow
