// One walk over all programs. Each rank runs its program until it needs something that another rank
// has not made yet, and is taken up again when a message for it leaves. Times are computed, not
// waited for, so the order in which ranks are visited does not matter: every instruction is looked
// at once, plus once for each time its rank was woken in vain, at most once a message.

#include "compiler/simulate/simulate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recomputed.h"
#include "compiler/simulate/lanes.h"

namespace contraflow {
namespace {

constexpr Time kUnset = -1;

class Simulator {
 public:
  Simulator(const Plan& plan, const CostModel& costs, Keep keep)
      : plan_(plan),
        costs_(costs),
        micro_(static_cast<size_t>(plan.microbatches)),
        route_of_(RouteOfMicrobatch(plan)),
        holders_(HoldersOfStage(plan)),
        explicit_messages_(plan.level != Level::kCompute),
        recomputed_(plan),
        bytes_(BytesOfCell(costs, recomputed_.any())) {
    const size_t chunks = static_cast<size_t>(plan.stages) * micro_;
    f_end_.assign(chunks, kUnset);
    b_end_.assign(chunks, kUnset);
    f_message_.assign(chunks, {kUnset, kUnset});
    b_message_.assign(chunks, {kUnset, kUnset});
    stage_.resize(static_cast<size_t>(plan.stages));
    rank_.resize(static_cast<size_t>(plan.ranks));
    result_.ranks.resize(rank_.size());
    result_.timeline.unit = costs.unit;
    if (keep == Keep::kFigures) return;
    result_.timeline.ranks.resize(rank_.size());
    for (size_t r = 0; r < rank_.size(); ++r) {
      result_.timeline.ranks[r].resize(plan.programs[r].size());
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
      const size_t next = rank_[static_cast<size_t>(r)].next;
      if (next < plan_.program(r).size()) Stuck({r, static_cast<int>(next)});
    }
    ReceiveLate();
    SumUp(&result_);
    return std::move(result_);
  }

 private:
  struct RankState {
    size_t next = 0;     // the instruction it is at
    Time lane_free = 0;  // when its compute lane is free
    bool blocked = false;
    bool computed = false;
    bool at_reduce = false;  // already counted in the reduction it stands at
    int activations = 0;
    int64_t bytes = 0;
    std::vector<std::pair<int, Time>> edges;  // peer, when the directed edge to it is free
  };
  struct StageState {
    Time weights_end = 0;  // last weight gradient so far, over all copies
    Time reduce_end = kUnset;
    size_t arrived = 0;  // holders that stand at its REDUCE
  };

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * micro_ + static_cast<size_t>(microbatch);
  }
  int Owner(int stage, int microbatch) const {
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
    return plan_.routes[route].ranks[static_cast<size_t>(stage)];
  }

  void Walk(int r) {
    RankState& state = rank_[static_cast<size_t>(r)];
    const Program& program = plan_.program(r);
    auto& timeline = result_.timeline.ranks;
    Span* const spans = timeline.empty() ? nullptr : timeline[static_cast<size_t>(r)].data();
    Span passing;
    state.blocked = false;
    while (state.next < program.size()) {
      if (!Execute(r, program[state.next], spans == nullptr ? &passing : spans + state.next)) {
        state.blocked = true;
        return;
      }
      ++state.next;
    }
  }

  /// Runs one instruction if all it needs is there.
  bool Execute(int r, const Instruction& i, Span* span) {
    switch (WorkOf(i.op)) {
      case Work::kCompute:
        return Compute(r, i, span);
      case Work::kSend:
        return Send(r, i, span);
      case Work::kRecv:
        return Receive(r, i, span);
      case Work::kReduce:
        return Reduce(r, i, span);
      case Work::kStep:
        return Step(r, i, span);
      case Work::kComponent:
      case Work::kAllToAll:
        break;
    }
    throw Error("cannot simulate " + ToString(i) + ": components are not simulated at level " +
                std::string(Name(plan_.level)));
  }

  bool Compute(int r, const Instruction& i, Span* span) {
    Time ready = 0;
    if (HasForward(i.op) && !ForwardReady(r, i.stage, i.microbatch, &ready)) return false;
    if (HasBackward(i.op) && !BackwardReady(r, BackStage(i), BackMicrobatch(i), &ready)) {
      return false;
    }
    if (i.op == Op::W) {
      const Time made = b_end_[At(i.stage, i.microbatch)];
      if (made == kUnset) return false;
      ready = std::max(ready, made);
    }
    Occupy(r, ready, costs_.Duration(i), span);
    Remember(r, i);
    if (HasForward(i.op)) {
      f_end_[At(i.stage, i.microbatch)] = span->end;
      if (!explicit_messages_ && i.stage + 1 < plan_.stages) {
        Depart(r, Owner(i.stage + 1, i.microbatch), span->end,
               &f_message_[At(i.stage, i.microbatch)]);
      }
    }
    if (HasBackward(i.op)) {
      const int stage = BackStage(i), m = BackMicrobatch(i);
      b_end_[At(stage, m)] = span->end;
      if (!explicit_messages_ && stage > 0) {
        Depart(r, Owner(stage - 1, m), span->end, &b_message_[At(stage, m)]);
      }
    }
    if (HasWeight(i.op)) {
      StageState& stage = stage_[static_cast<size_t>(BackStage(i))];
      stage.weights_end = std::max(stage.weights_end, span->end);
    }
    return true;
  }

  bool ForwardReady(int r, int stage, int m, Time* ready) const {
    if (stage == 0) return true;
    return Arrived(r, Owner(stage - 1, m), f_end_[At(stage - 1, m)], f_message_[At(stage - 1, m)],
                   ready);
  }

  bool BackwardReady(int r, int stage, int m, Time* ready) const {
    const Time forward = f_end_[At(stage, m)];
    if (forward == kUnset) return false;
    *ready = std::max(*ready, forward);
    if (stage + 1 == plan_.stages) return true;
    return Arrived(r, Owner(stage + 1, m), b_end_[At(stage + 1, m)], b_message_[At(stage + 1, m)],
                   ready);
  }

  static bool Arrived(int r, int producer, Time made, const Span& message, Time* ready) {
    const Time time = producer == r ? made : message.end;
    *ready = std::max(*ready, time);
    return time != kUnset;
  }

  void Occupy(int r, Time ready, Time duration, Span* span) {
    RankState& state = rank_[static_cast<size_t>(r)];
    RankFigures& figures = result_.ranks[static_cast<size_t>(r)];
    span->start = std::max(state.lane_free, ready);
    span->end = span->start + duration;
    state.lane_free = span->end;
    if (!state.computed) figures.first_start = span->start;
    state.computed = true;
    figures.busy += duration;
    figures.last_end = std::max(figures.last_end, span->end);
  }

  /// Follows the activations through one compute instruction.
  void Remember(int r, const Instruction& i) {
    RankState& state = rank_[static_cast<size_t>(r)];
    RankFigures& figures = result_.ranks[static_cast<size_t>(r)];
    if (HasForward(i.op) || i.op == Op::R) {
      ++state.activations;
      state.bytes += bytes_.activation - (i.op == Op::R ? bytes_.input : 0);
      const bool more_bytes = state.bytes > figures.peak_bytes;
      const bool more = state.activations > figures.peak_activations;
      if (more_bytes || (more && bytes_.activation == 0)) {
        figures.peak_index = static_cast<int>(state.next);
      }
      figures.peak_bytes = std::max(figures.peak_bytes, state.bytes);
      figures.peak_activations = std::max(figures.peak_activations, state.activations);
    }
    if (HasForward(i.op) && recomputed_.Has(i.stage, i.microbatch)) {
      --state.activations;
      state.bytes -= bytes_.activation - bytes_.input;
    }
    if (HasBackward(i.op)) state.bytes -= bytes_.activation - bytes_.stash;
    if (HasWeight(i.op)) {
      state.bytes -= bytes_.stash;
      --state.activations;
    }
  }

  /// A message leaves `from` at `ready` at the earliest; wakes the receiver.
  void Depart(int from, int to, Time ready, Span* message) {
    if (from == to) return;
    Time start = ready;
    if (costs_.comm.exclusive()) {
      auto& edges = rank_[static_cast<size_t>(from)].edges;
      auto edge =
          std::find_if(edges.begin(), edges.end(), [to](const auto& e) { return e.first == to; });
      if (edge == edges.end()) edge = edges.insert(edges.end(), {to, 0});
      start = std::max(start, edge->second);
      edge->second = start + costs_.comm.occupancy;
    }
    *message = {start, start + costs_.comm.occupancy + costs_.comm.latency};
    Wake(to);
  }

  void Wake(int r) {
    RankState& state = rank_[static_cast<size_t>(r)];
    if (!state.blocked) return;
    state.blocked = false;
    ready_.push_back(r);
  }

  bool Send(int r, const Instruction& i, Span* span) {
    const size_t at = At(i.stage, i.microbatch);
    const bool forward = i.op == Op::SEND_F;
    const Time made = forward ? f_end_[at] : b_end_[at];
    if (made == kUnset) return false;
    Span* const message = forward ? &f_message_[at] : &b_message_[at];
    Depart(r, i.peer, made, message);
    *span = *message;
    return true;
  }

  /// Does not wait: the consumer does. In a group a RECV may stand before the SEND that its message
  /// depends on.
  bool Receive(int r, const Instruction& i, Span* span) {
    *span = Incoming(i);
    if (span->end == kUnset)
      late_.push_back({r, static_cast<int>(rank_[static_cast<size_t>(r)].next)});
    return true;
  }

  /// RECV_F names the stage that consumes, the message the stage that produced.
  Span Incoming(const Instruction& i) const {
    const bool forward = i.op == Op::RECV_F;
    const int producer = forward ? i.stage - 1 : i.stage + 1;
    if (producer < 0 || producer >= plan_.stages) return {kUnset, kUnset};
    return (forward ? f_message_ : b_message_)[At(producer, i.microbatch)];
  }

  /// Gives the receives that were posted before their message left its span.
  void ReceiveLate() {
    for (const InstructionRef& ref : late_) {
      const auto r = static_cast<size_t>(ref.rank), index = static_cast<size_t>(ref.index);
      const Span message = Incoming(plan_.programs[r][index]);
      if (message.end == kUnset) Stuck(ref);
      if (!result_.timeline.ranks.empty()) result_.timeline.ranks[r][index] = message;
    }
  }

  [[noreturn]] void Stuck(const InstructionRef& ref) const {
    const auto r = static_cast<size_t>(ref.rank), index = static_cast<size_t>(ref.index);
    throw Error("cannot simulate: rank " + std::to_string(ref.rank) +
                " never gets past instruction " + std::to_string(ref.index) + " (" +
                ToString(plan_.programs[r][index]) + "); verify the plan first");
  }

  bool Reduce(int r, const Instruction& i, Span* span) {
    RankState& state = rank_[static_cast<size_t>(r)];
    StageState& stage = stage_[static_cast<size_t>(i.stage)];
    const auto& holders = holders_[static_cast<size_t>(i.stage)];
    if (!state.at_reduce) {
      state.at_reduce = true;
      if (++stage.arrived == holders.size()) {
        stage.reduce_end = stage.weights_end + costs_.stage(i.stage).reduce;
        for (const int holder : holders) Wake(holder);
      }
    }
    if (stage.reduce_end == kUnset) return false;
    state.at_reduce = false;
    *span = {stage.reduce_end - costs_.stage(i.stage).reduce, stage.reduce_end};
    RankFigures& figures = result_.ranks[static_cast<size_t>(r)];
    figures.last_end = std::max(figures.last_end, span->end);
    return true;
  }

  bool Step(int r, const Instruction& i, Span* span) {
    const StageState& stage = stage_[static_cast<size_t>(i.stage)];
    const Time ready = stage.reduce_end == kUnset ? stage.weights_end : stage.reduce_end;
    Occupy(r, ready, costs_.stage(i.stage).step, span);
    return true;
  }

  const Plan& plan_;
  const CostModel& costs_;
  const size_t micro_;
  const std::vector<int> route_of_;
  const std::vector<std::vector<int>> holders_;
  const bool explicit_messages_;
  const RecomputedCells recomputed_;
  const CellBytes bytes_;
  std::vector<Time> f_end_, b_end_;          // by stage and micro-batch
  std::vector<Span> f_message_, b_message_;  // leaving that stage
  std::vector<StageState> stage_;
  std::vector<RankState> rank_;
  std::vector<int> ready_;            // ranks to walk on with
  std::vector<InstructionRef> late_;  // receives passed before their message left
  Simulation result_;
};

}  // namespace

double Simulation::bubble_ratio() const {
  Time bubble = 0;
  for (const RankFigures& figures : ranks) bubble += figures.bubble;
  if (makespan == 0) return 0;
  return static_cast<double>(bubble) /
         (static_cast<double>(ranks.size()) * static_cast<double>(makespan));
}

Simulation Simulate(const Plan& plan, const CostModel& costs, Keep keep) {
  CheckCosts(costs, plan.stages, plan.microbatches);
  if (plan.level >= Level::kComponent) {
    if (plan.layers > 0 && (!costs.moe || costs.moe->layers_per_stage != plan.layers)) {
      throw Error("the plan has components of " + std::to_string(plan.layers) +
                  " layers a stage; give costs with \"moe\" and \"layers_per_stage\": " +
                  std::to_string(plan.layers));
    }
    Simulation simulation = SimulateLanes(plan, costs);
    if (keep == Keep::kFigures) simulation.timeline.ranks = {};
    return simulation;
  }
  return Simulator(plan, costs, keep).Run();
}

}  // namespace contraflow
