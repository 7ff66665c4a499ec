// Plans whose instructions have lanes. Each rank's program is walked in its order: every
// instruction begins when its lane and all it waits for have ended, so a walk only has to stop
// where it needs the time of a message that the other side has not come to yet. A message is under
// way when both sides have posted it.

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/plan/grid.h"
#include "compiler/simulate/engine.h"

namespace contraflow {
namespace {

constexpr Time kNotReady = -1;

/// One message between two ranks.
struct Flight {
  Time sent = kNotReady, received = kNotReady;  // since when either side is ready for it
  InstructionRef send, receive;
};

/// Time in which both lanes are busy.
Time Common(const std::vector<Span>& a, const std::vector<Span>& b) {
  Time common = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    common += std::max<Time>(0, std::min(a[i].end, b[k].end) - std::max(a[i].start, b[k].start));
    if (a[i].end < b[k].end) {
      ++i;
    } else {
      ++k;
    }
  }
  return common;
}

class LaneSimulator {
 public:
  LaneSimulator(const Plan& plan, const CostModel& costs, const MeasuredStep* measured)
      : plan_(plan),
        costs_(costs),
        durations_(plan, costs, measured),
        engine_(plan),
        edges_(plan, costs),
        reductions_(plan, durations_),
        recomputed_(plan),
        free_(plan.programs.size(), {0, 0, 0, 0}),
        forward_(plan.stages, plan.microbatches),
        backward_(plan.stages, plan.microbatches) {
    CheckHostCost(costs, OffloadedCells(plan).any() && measured == nullptr);
    result_.ranks.resize(plan.programs.size());
    result_.timeline.unit = costs.unit;
    for (const Program& program : plan.programs) {
      result_.timeline.ranks.emplace_back(program.size(), Span{kNotReady, kNotReady});
    }
  }

  /// Up to where nothing can go on.
  Timeline RunUpTo() {
    engine_.Run([&](int r, const Instruction& i, size_t) { return Execute(r, i); });
    return std::move(result_.timeline);
  }

  Simulation Run() {
    engine_.Run([&](int r, const Instruction& i, size_t) { return Execute(r, i); });
    for (int r = 0; r < plan_.ranks; ++r) {
      const std::vector<Span>& spans = SpansOf(r);
      const auto open = std::find(spans.begin(), spans.end(), Span{kNotReady, kNotReady});
      if (open != spans.end()) engine_.Stuck({r, static_cast<int>(open - spans.begin())});
    }
    for (size_t r = 0; r < result_.ranks.size(); ++r) {
      result_.ranks[r] = FiguresOfSpans(plan_, costs_, recomputed_, r, result_.timeline.ranks[r]);
    }
    SumUp(&result_);
    return std::move(result_);
  }

 private:
  std::vector<Span>& SpansOf(int r) { return result_.timeline.ranks[static_cast<size_t>(r)]; }
  Span& SpanAt(const InstructionRef& ref) {
    return SpansOf(ref.rank)[static_cast<size_t>(ref.index)];
  }

  bool Execute(int r, const Instruction& i) {
    const std::vector<Span>& spans = SpansOf(r);
    Time ready = 0;
    for (int k = 0; k < i.after_count; ++k) {
      const Time end = spans[static_cast<size_t>(i.after[static_cast<size_t>(k)])].end;
      if (end == kNotReady) return false;
      ready = std::max(ready, end);
    }
    const InstructionRef here = engine_.At(r);
    if (IsMessage(i.op)) {
      Post(i, here, ready);
      return true;
    }
    if (i.op == Op::REDUCE) return Reduce(i, here, ready);
    Time& free = free_[static_cast<size_t>(r)][QueueOf(i.op)];
    const Time start = std::max(free, ready);
    free = start + durations_.Of(here, i);
    SpanAt(here) = {start, free};
    return true;
  }

  bool Reduce(const Instruction& i, const InstructionRef& here, Time ready) {
    Time& free = free_[static_cast<size_t>(here.rank)][0];
    if (durations_.reduce_blocks()) ready = std::max(ready, free);
    if (!reductions_.Meet(here.rank, i.stage, ready, &engine_, &SpanAt(here))) return false;
    if (durations_.reduce_blocks()) free = SpanAt(here).end;
    return true;
  }

  /// Which of `free_`.
  static size_t QueueOf(Op op) {
    const Lane lane = LaneOf(op);
    return lane == Lane::kAllToAll ? 1 : lane == Lane::kOffload ? 2 : lane == Lane::kReload ? 3 : 0;
  }

  /// One side of a message is ready for it.
  void Post(const Instruction& i, const InstructionRef& here, Time ready) {
    const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
    const bool send = IsSend(i.op);
    // RECV names the stage that consumes, SEND the one that made it.
    const int producer = send ? i.stage : i.stage + (forward ? -1 : 1);
    if (producer < 0 || producer >= plan_.stages) return;
    Flight& flight = (forward ? forward_ : backward_)(producer, i.microbatch);
    (send ? flight.sent : flight.received) = ready;
    (send ? flight.send : flight.receive) = here;
    if (flight.sent == kNotReady || flight.received == kNotReady) return;
    const Time start = std::max(flight.sent, flight.received);
    const Span span = edges_.Send(flight.send.rank, flight.receive.rank,
                                  forward ? producer : producer - 1, start);
    SpanAt(flight.send) = SpanAt(flight.receive) = span;
    engine_.Wake(send ? flight.receive.rank : flight.send.rank);
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Durations durations_;
  Engine engine_;
  Edges edges_;
  Reductions reductions_;
  const RecomputedCells recomputed_;
  std::vector<std::array<Time, 4>> free_;  // of each rank: compute, all-to-all, to and from host
  Grid<Flight> forward_, backward_;        // by the stage that made it
  Simulation result_;
};

}  // namespace

RankFigures FiguresOfSpans(const Plan& plan, const CostModel& costs,
                           const RecomputedCells& recomputed, size_t r,
                           const std::vector<Span>& spans) {
  const Program& program = plan.programs[r];
  RankFigures figures;
  bool begun = false;
  std::vector<Span> lanes[2];
  for (size_t i = 0; i < program.size(); ++i) {
    if (IsMessage(program[i].op) || spans[i].start < 0) continue;
    figures.last_end = std::max(figures.last_end, spans[i].end);
    if (program[i].op == Op::REDUCE || IsHostCopy(program[i].op)) continue;
    if (!begun) figures.first_start = spans[i].start;
    figures.first_start = std::min(figures.first_start, spans[i].start);
    begun = true;
    const bool all_to_all = WorkOf(program[i].op) == Work::kAllToAll;
    (all_to_all ? figures.all_to_all : figures.busy) += spans[i].end - spans[i].start;
    lanes[all_to_all ? 1 : 0].push_back(spans[i]);
  }
  figures.exposed = figures.all_to_all - Common(lanes[0], lanes[1]);
  FollowActivations(plan, costs, recomputed, r, spans, &figures);
  return figures;
}

Simulation SimulateLanes(const Plan& plan, const CostModel& costs, const MeasuredStep* measured) {
  return LaneSimulator(plan, costs, measured).Run();
}

Timeline SimulateLanesUpTo(const Plan& plan, const CostModel& costs) {
  return LaneSimulator(plan, costs, nullptr).RunUpTo();
}

}  // namespace contraflow
