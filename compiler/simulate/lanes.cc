// Plans whose instructions have lanes. Each rank's program is walked in its order: every
// instruction begins when its lane and all it waits for have ended, so a walk only has to stop
// where it needs the time of a message that the other side has not come to yet. A message is under
// way when both sides have posted it.

#include "compiler/simulate/lanes.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr Time kNotReady = -1;

/// One message between two ranks.
struct Flight {
  Time sent = kNotReady, received = kNotReady;  // since when either side is ready for it
  InstructionRef send, receive;
};

class LaneSimulator {
 public:
  LaneSimulator(const Plan& plan, const CostModel& costs)
      : plan_(plan),
        costs_(costs),
        holders_(HoldersOfStage(plan)),
        recomputed_(plan),
        ranks_(plan.programs.size()),
        reductions_(static_cast<size_t>(plan.stages)) {
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    for (auto& flights : flights_) flights.resize(chunks);
    result_.ranks.resize(ranks_.size());
    result_.timeline.unit = costs.unit;
    for (const Program& program : plan.programs) {
      result_.timeline.ranks.emplace_back(program.size(), Span{kNotReady, kNotReady});
    }
  }

  Simulation Run() {
    for (int r = plan_.ranks - 1; r >= 0; --r) ready_.push_back(r);
    while (!ready_.empty()) {
      const int r = ready_.back();
      ready_.pop_back();
      Walk(r);
    }
    for (int r = 0; r < plan_.ranks; ++r) {
      const auto rank = static_cast<size_t>(r);
      const std::vector<Span>& spans = result_.timeline.ranks[rank];
      const auto open = std::find(spans.begin(), spans.end(), Span{kNotReady, kNotReady});
      if (open != spans.end()) {
        const int index = static_cast<int>(open - spans.begin());
        throw Error("cannot simulate: rank " + std::to_string(r) + " never gets past instruction " +
                    std::to_string(index) + " (" +
                    ToString(plan_.programs[rank][static_cast<size_t>(index)]) +
                    "); verify the plan first");
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) Finish(r);
    SumUp(&result_);
    return std::move(result_);
  }

 private:
  struct RankState {
    size_t next = 0;
    Time free[2] = {0, 0};  // compute and all-to-all lane
    bool blocked = false;
    bool at_reduce = false;
    std::vector<std::pair<int, Time>> edges;  // peer, when the directed edge to it is free
  };
  struct Reduction {
    Time ready = 0;  // when the last holder so far has come to it
    size_t arrived = 0;
    Time end = kNotReady;
  };

  Span& SpanAt(const InstructionRef& ref) {
    return result_.timeline.ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
  }

  void Walk(int r) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    const Program& program = plan_.program(r);
    rank.blocked = false;
    while (rank.next < program.size()) {
      if (!Execute(r, program[rank.next])) {
        rank.blocked = true;
        return;
      }
      ++rank.next;
    }
  }

  void Wake(int r) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    if (!rank.blocked) return;
    rank.blocked = false;
    ready_.push_back(r);
  }

  bool Execute(int r, const Instruction& i) {
    const auto& spans = result_.timeline.ranks[static_cast<size_t>(r)];
    RankState& rank = ranks_[static_cast<size_t>(r)];
    Time ready = 0;
    for (int k = 0; k < i.after_count; ++k) {
      const Time end = spans[static_cast<size_t>(i.after[static_cast<size_t>(k)])].end;
      if (end == kNotReady) return false;
      ready = std::max(ready, end);
    }
    const InstructionRef here = {r, static_cast<int>(rank.next)};
    switch (WorkOf(i.op)) {
      case Work::kSend:
      case Work::kRecv:
        Post(i, here, ready);
        return true;
      case Work::kReduce:
        return Reduce(i, here, ready);
      case Work::kCompute:
      case Work::kComponent:
      case Work::kAllToAll:
      case Work::kStep:
        break;
    }
    Time& free = rank.free[WorkOf(i.op) == Work::kAllToAll ? 1 : 0];
    const Time start = std::max(free, ready);
    free = start + costs_.Duration(i);
    SpanAt(here) = {start, free};
    return true;
  }

  /// One side of a message is ready for it.
  void Post(const Instruction& i, const InstructionRef& here, Time ready) {
    const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
    const bool send = WorkOf(i.op) == Work::kSend;
    // RECV names the stage that consumes, SEND the one that made it.
    const int producer = send ? i.stage : i.stage + (forward ? -1 : 1);
    if (producer < 0 || producer >= plan_.stages) return;
    Flight& flight = flights_[forward ? 0 : 1][static_cast<size_t>(producer) *
                                                   static_cast<size_t>(plan_.microbatches) +
                                               static_cast<size_t>(i.microbatch)];
    (send ? flight.sent : flight.received) = ready;
    (send ? flight.send : flight.receive) = here;
    if (flight.sent == kNotReady || flight.received == kNotReady) return;
    Time start = std::max(flight.sent, flight.received);
    if (costs_.comm.exclusive()) {
      auto& edges = ranks_[static_cast<size_t>(flight.send.rank)].edges;
      const int to = flight.receive.rank;
      auto edge =
          std::find_if(edges.begin(), edges.end(), [to](const auto& e) { return e.first == to; });
      if (edge == edges.end()) edge = edges.insert(edges.end(), {to, 0});
      start = std::max(start, edge->second);
      edge->second = start + costs_.comm.occupancy;
    }
    const Span span = {start, start + costs_.comm.occupancy + costs_.comm.latency};
    SpanAt(flight.send) = SpanAt(flight.receive) = span;
    Wake(send ? flight.receive.rank : flight.send.rank);
  }

  bool Reduce(const Instruction& i, const InstructionRef& here, Time ready) {
    RankState& rank = ranks_[static_cast<size_t>(here.rank)];
    Reduction& reduction = reductions_[static_cast<size_t>(i.stage)];
    const auto& holders = holders_[static_cast<size_t>(i.stage)];
    if (!rank.at_reduce) {
      rank.at_reduce = true;
      reduction.ready = std::max(reduction.ready, ready);
      if (++reduction.arrived == holders.size()) {
        reduction.end = reduction.ready + costs_.stage(i.stage).reduce;
        for (const int holder : holders) Wake(holder);
      }
    }
    if (reduction.end == kNotReady) return false;
    rank.at_reduce = false;
    SpanAt(here) = {reduction.end - costs_.stage(i.stage).reduce, reduction.end};
    return true;
  }

  // Figures of a rank, from its spans.

  void Finish(size_t r) {
    const Program& program = plan_.programs[r];
    const std::vector<Span>& spans = result_.timeline.ranks[r];
    RankFigures& figures = result_.ranks[r];
    bool begun = false;
    std::vector<Span> lanes[2];
    for (size_t i = 0; i < program.size(); ++i) {
      if (WorkOf(program[i].op) == Work::kSend || WorkOf(program[i].op) == Work::kRecv) continue;
      figures.last_end = std::max(figures.last_end, spans[i].end);
      if (program[i].op == Op::REDUCE) continue;
      if (!begun) figures.first_start = spans[i].start;
      figures.first_start = std::min(figures.first_start, spans[i].start);
      begun = true;
      const bool all_to_all = WorkOf(program[i].op) == Work::kAllToAll;
      (all_to_all ? figures.all_to_all : figures.busy) += spans[i].end - spans[i].start;
      lanes[all_to_all ? 1 : 0].push_back(spans[i]);
    }
    figures.exposed = figures.all_to_all - Common(lanes[0], lanes[1]);
    FollowActivations(plan_, costs_, recomputed_, r, spans, &figures);
  }

  /// Time in which both lanes are busy.
  static Time Common(const std::vector<Span>& a, const std::vector<Span>& b) {
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

  const Plan& plan_;
  const CostModel& costs_;
  const std::vector<std::vector<int>> holders_;
  const RecomputedCells recomputed_;
  std::vector<RankState> ranks_;
  std::vector<Reduction> reductions_;
  std::vector<Flight> flights_[2];  // forward and backward, by the stage that made it
  std::vector<int> ready_;
  Simulation result_;
};

}  // namespace

void SumUp(Simulation* simulation) {
  for (const RankFigures& figures : simulation->ranks) {
    simulation->makespan = std::max(simulation->makespan, figures.last_end);
    simulation->span = std::max(simulation->span, figures.last_end - figures.first_start);
  }
  for (RankFigures& figures : simulation->ranks) {
    figures.bubble = simulation->makespan - figures.busy;
  }
}

Simulation SimulateLanes(const Plan& plan, const CostModel& costs) {
  return LaneSimulator(plan, costs).Run();
}

}  // namespace contraflow
