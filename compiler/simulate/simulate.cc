// Plans of chunks: an instruction runs on the one compute lane of its rank when all it needs is
// there, and messages leave when their producers end. A rank is woken at most once a message.

#include "compiler/simulate/simulate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/engine.h"
#include "compiler/simulate/message_queues.h"

namespace contraflow {
namespace {

constexpr Time kUnset = -1;
constexpr Span kNever = {kUnset, kUnset};

class Simulator {
 public:
  Simulator(const Plan& plan, const CostModel& costs, Keep keep, const MeasuredStep* measured)
      : plan_(plan),
        costs_(costs),
        durations_(plan, costs, measured),
        owner_(plan),
        engine_(plan),
        edges_(plan, costs),
        queues_(plan, costs.comm, &edges_),
        reductions_(plan, durations_),
        explicit_messages_(plan.level != Level::kCompute),
        recomputed_(plan),
        offloaded_(plan),
        cells_(BytesOfCells(costs, recomputed_, plan.stages)),
        f_end_(plan.stages, plan.microbatches, kUnset),
        b_end_(plan.stages, plan.microbatches, kUnset),
        f_message_(plan.stages, plan.microbatches, {kUnset, kUnset}),
        b_message_(plan.stages, plan.microbatches, {kUnset, kUnset}),
        weights_end_(static_cast<size_t>(plan.stages), 0),
        rank_(plan.programs.size()) {
    result_.ranks.resize(rank_.size());
    result_.timeline.unit = costs.unit;
    CheckHostCost(costs, offloaded_.any() && measured == nullptr);
    if (offloaded_.any()) offload_end_ = reload_end_ = f_end_;
    if (keep == Keep::kFigures) return;
    result_.timeline.ranks.resize(rank_.size());
    for (size_t r = 0; r < rank_.size(); ++r) {
      result_.timeline.ranks[r].resize(plan.programs[r].size());
    }
  }

  /// Up to where nothing can go on.
  Timeline RunUpTo() {
    auto& timeline = result_.timeline.ranks;
    for (std::vector<Span>& spans : timeline) std::fill(spans.begin(), spans.end(), kNever);
    engine_.Run([&](int r, const Instruction& i, size_t index) {
      return Execute(r, i, timeline[static_cast<size_t>(r)].data() + index);
    });
    for (const InstructionRef& ref : late_) {
      const auto r = static_cast<size_t>(ref.rank), index = static_cast<size_t>(ref.index);
      if (const Span* message = MessageOf(plan_.programs[r][index])) timeline[r][index] = *message;
    }
    return std::move(result_.timeline);
  }

  Simulation Run() {
    auto& timeline = result_.timeline.ranks;
    Span passing;
    engine_.Run([&](int r, const Instruction& i, size_t index) {
      Span* const span =
          timeline.empty() ? &passing : timeline[static_cast<size_t>(r)].data() + index;
      return Execute(r, i, span);
    });
    for (int r = 0; r < plan_.ranks; ++r) {
      const InstructionRef at = engine_.At(r);
      if (static_cast<size_t>(at.index) < plan_.program(r).size()) engine_.Stuck(at);
    }
    PassLate();
    SumUp(&result_);
    return std::move(result_);
  }

 private:
  struct RankState {
    Time lane_free = 0;  // when its compute lane is free
    Time offload_free = 0, reload_free = 0;
    bool computed = false;
    RankMemory activations, bytes;
  };

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
      case Work::kOffload:
        return Offload(r, i, span);
      case Work::kReload:
        return Reload(r, i, span);
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
    // An instruction that takes memory begins when all before it that leave are gone.
    const RankState& state = rank_[static_cast<size_t>(r)];
    if (HasForward(i.op) || i.op == Op::R) ready = std::max(ready, state.offload_free);
    if (HasBackward(i.op) && !BackwardReady(r, BackStage(i), BackMicrobatch(i), &ready)) {
      return false;
    }
    if (i.op == Op::W) {
      const Time made = b_end_(i.stage, i.microbatch);
      if (made == kUnset) return false;
      ready = std::max(ready, made);
    }
    Occupy(r, ready, durations_.Of(engine_.At(r), i), span);
    Remember(r, i);
    if (HasForward(i.op)) {
      f_end_(i.stage, i.microbatch) = span->end;
      if (!explicit_messages_ && i.stage + 1 < plan_.stages) {
        Depart(r, owner_(i.stage + 1, i.microbatch), i.stage, span->end,
               &f_message_(i.stage, i.microbatch));
      }
    }
    if (HasBackward(i.op)) {
      const int stage = BackStage(i), m = BackMicrobatch(i);
      b_end_(stage, m) = span->end;
      if (!explicit_messages_ && stage > 0) {
        Depart(r, owner_(stage - 1, m), stage - 1, span->end, &b_message_(stage, m));
      }
    }
    if (HasWeight(i.op)) {
      Time& weights_end = weights_end_[static_cast<size_t>(BackStage(i))];
      weights_end = std::max(weights_end, span->end);
    }
    return true;
  }

  bool ForwardReady(int r, int stage, int m, Time* ready) const {
    if (stage == 0) return true;
    return Arrived(r, owner_(stage - 1, m), f_end_(stage - 1, m), f_message_(stage - 1, m), ready);
  }

  bool BackwardReady(int r, int stage, int m, Time* ready) const {
    const Time forward = f_end_(stage, m);
    if (forward == kUnset) return false;
    *ready = std::max(*ready, forward);
    if (offloaded_.Has(stage, m)) {
      const Time reloaded = reload_end_(stage, m);
      if (reloaded == kUnset) return false;
      *ready = std::max(*ready, reloaded);
    }
    if (stage + 1 == plan_.stages) return true;
    return Arrived(r, owner_(stage + 1, m), b_end_(stage + 1, m), b_message_(stage + 1, m), ready);
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

  /// Follows the activations through one instruction.
  void Remember(int r, const Instruction& i) {
    RankState& state = rank_[static_cast<size_t>(r)];
    RankFigures& figures = result_.ranks[static_cast<size_t>(r)];
    const CellBytes& own = cells_[static_cast<size_t>(i.stage)];
    state.activations.Begin(i.op, kOneActivation);
    state.bytes.Begin(i.op, own);
    const bool more_bytes = state.bytes.peak() > figures.peak_bytes;
    const bool more = state.activations.peak() > figures.peak_activations;
    if (more_bytes || (more && own.activation == 0)) figures.peak_index = engine_.At(r).index;
    figures.peak_bytes = state.bytes.peak();
    figures.peak_activations = static_cast<int>(state.activations.peak());
    const bool again = HasForward(i.op) && recomputed_.Has(i.stage, i.microbatch);
    state.activations.End(i.op, kOneActivation, kOneActivation, again);
    state.bytes.End(i.op, own, cells_[static_cast<size_t>(BackStage(i))], again);
  }

  /// A message between stages s and s + 1 leaves `from` at `ready` at the earliest; wakes the
  /// receiver.
  void Depart(int from, int to, int s, Time ready, Span* message) {
    if (from == to) return;
    *message = edges_.Send(from, to, s, ready);
    engine_.Wake(to);
  }

  bool Send(int r, const Instruction& i, Span* span) {
    const bool forward = i.op == Op::SEND_F;
    const Time made = (forward ? f_end_ : b_end_)(i.stage, i.microbatch);
    if (made == kUnset) return false;
    Span* const message = MessageOf(i);
    if (costs_.comm.queued()) return Post(r, made, message, span);
    Depart(r, i.peer, forward ? i.stage : i.stage - 1, made, message);
    *span = *message;
    return true;
  }

  /// Does not wait: the consumer does. In a group a RECV may stand before the SEND that its message
  /// depends on.
  bool Receive(int r, const Instruction& i, Span* span) {
    Span* const message = MessageOf(i);
    if (costs_.comm.queued() && message != nullptr) return Post(r, 0, message, span);
    *span = message == nullptr ? kNever : *message;
    if (span->end == kUnset) late_.push_back(engine_.At(r));
    return true;
  }

  /// The message may leave at `ready`.
  bool Post(int r, Time ready, Span* message, Span* span) {
    const InstructionRef at = engine_.At(r);
    queues_.Post(at, ready, message, &engine_);
    *span = *message;
    if (span->end == kUnset) late_.push_back(at);
    return true;
  }

  /// The span that both sides of a message share; null for one of a stage that there is not.
  /// RECV names the stage that consumes, the message the one that produced.
  Span* MessageOf(const Instruction& i) {
    const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
    const int producer = IsSend(i.op) ? i.stage : forward ? i.stage - 1 : i.stage + 1;
    if (producer < 0 || producer >= plan_.stages) return nullptr;
    return &(forward ? f_message_ : b_message_)(producer, i.microbatch);
  }

  /// Gives the messages that were posted before they left their spans.
  void PassLate() {
    for (const InstructionRef& ref : late_) {
      const auto r = static_cast<size_t>(ref.rank), index = static_cast<size_t>(ref.index);
      const Span* const message = MessageOf(plan_.programs[r][index]);
      if (message == nullptr || message->end == kUnset) engine_.Stuck(ref);
      if (!result_.timeline.ranks.empty()) result_.timeline.ranks[r][index] = *message;
    }
  }

  bool Offload(int r, const Instruction& i, Span* span) {
    const Time made = f_end_(i.stage, i.microbatch);
    if (made == kUnset) return false;
    Time& free = rank_[static_cast<size_t>(r)].offload_free;
    *span = Copy(r, i, std::max(free, made));
    offload_end_(i.stage, i.microbatch) = free = span->end;
    Remember(r, i);
    return true;
  }

  /// It takes memory, so it does not begin before its turn comes: when what stands before it on the
  /// compute lane has ended, and all that leaves before it is gone.
  bool Reload(int r, const Instruction& i, Span* span) {
    const Time away = offload_end_(i.stage, i.microbatch);
    if (away == kUnset) return false;
    RankState& state = rank_[static_cast<size_t>(r)];
    *span = Copy(r, i, std::max({state.reload_free, state.offload_free, state.lane_free}));
    reload_end_(i.stage, i.microbatch) = state.reload_free = span->end;
    Remember(r, i);
    return true;
  }

  Span Copy(int r, const Instruction& i, Time start) {
    const Span span{start, start + durations_.Of(engine_.At(r), i)};
    Time& last_end = result_.ranks[static_cast<size_t>(r)].last_end;
    last_end = std::max(last_end, span.end);
    return span;
  }

  bool Reduce(int r, const Instruction& i, Span* span) {
    Time ready = weights_end_[static_cast<size_t>(i.stage)];
    Time& free = rank_[static_cast<size_t>(r)].lane_free;
    if (durations_.reduce_blocks()) ready = std::max(ready, free);
    if (!reductions_.Meet(r, i.stage, ready, &engine_, span)) return false;
    if (durations_.reduce_blocks()) free = span->end;
    RankFigures& figures = result_.ranks[static_cast<size_t>(r)];
    figures.last_end = std::max(figures.last_end, span->end);
    return true;
  }

  bool Step(int r, const Instruction& i, Span* span) {
    const Time ready = reductions_.Done(i.stage) ? reductions_.EndOf(i.stage)
                                                 : weights_end_[static_cast<size_t>(i.stage)];
    Occupy(r, ready, durations_.Of(engine_.At(r), i), span);
    return true;
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Durations durations_;
  const Owners owner_;
  Engine engine_;
  Edges edges_;
  MessageQueues queues_;
  Reductions reductions_;
  const bool explicit_messages_;
  const RecomputedCells recomputed_;
  const OffloadedCells offloaded_;
  const std::vector<CellBytes> cells_;  // by stage
  Grid<Time> f_end_, b_end_;
  Grid<Time> offload_end_, reload_end_;  // empty where nothing is offloaded
  Grid<Span> f_message_, b_message_;     // leaving that stage
  std::vector<Time> weights_end_;  // of each stage: last weight gradient so far, over all copies
  std::vector<RankState> rank_;
  std::vector<InstructionRef> late_;  // messages passed before they left
  Simulation result_;
};

}  // namespace

void Engine::Stuck(const InstructionRef& at) const {
  throw Error("cannot simulate: rank " + std::to_string(at.rank) + " never gets past instruction " +
              std::to_string(at.index) + " (" +
              ToString(plan_.program(at.rank)[static_cast<size_t>(at.index)]) +
              "); verify the plan first");
}

Durations::Durations(const Plan& plan, const CostModel& costs, const MeasuredStep* measured)
    : costs_(costs), measured_(measured) {
  if (measured == nullptr) return;
  reduce_.resize(static_cast<size_t>(plan.stages));
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      if (plan.programs[r][i].op != Op::REDUCE) continue;
      Time& longest = reduce_[static_cast<size_t>(plan.programs[r][i].stage)];
      const Span& span = measured->timeline.ranks[r][i];
      longest = std::max(longest, span.end - span.start);
    }
  }
}

void SumUp(Simulation* simulation) {
  for (const RankFigures& figures : simulation->ranks) {
    simulation->makespan = std::max(simulation->makespan, figures.last_end);
    simulation->span = std::max(simulation->span, figures.last_end - figures.first_start);
  }
  for (RankFigures& figures : simulation->ranks) {
    figures.bubble = simulation->makespan - figures.busy;
  }
}

double Simulation::bubble_ratio() const {
  Time bubble = 0;
  for (const RankFigures& figures : ranks) bubble += figures.bubble;
  if (makespan == 0) return 0;
  return static_cast<double>(bubble) /
         (static_cast<double>(ranks.size()) * static_cast<double>(makespan));
}

namespace {

void CheckCostsOf(const Plan& plan, const CostModel& costs) {
  CheckCosts(costs, plan.stages, plan.microbatches);
  CheckLayers(plan, costs);
}

Simulation Run(const Plan& plan, const CostModel& costs, Keep keep, const MeasuredStep* measured) {
  CheckCostsOf(plan, costs);
  if (plan.level >= Level::kComponent) {
    Simulation simulation = SimulateLanes(plan, costs, measured);
    if (keep == Keep::kFigures) simulation.timeline.ranks = {};
    return simulation;
  }
  return Simulator(plan, costs, keep, measured).Run();
}

}  // namespace

Simulation Simulate(const Plan& plan, const CostModel& costs, Keep keep) {
  return Run(plan, costs, keep, nullptr);
}

Simulation RunOf(const Plan& plan, const CostModel& costs, Timeline measured) {
  Time first = std::numeric_limits<Time>::max();
  for (const std::vector<Span>& spans : measured.ranks) {
    for (const Span& span : spans) first = std::min(first, span.start);
  }
  Simulation run;
  const RecomputedCells recomputed(plan);
  for (size_t r = 0; r < measured.ranks.size(); ++r) {
    for (Span& span : measured.ranks[r]) span = {span.start - first, span.end - first};
    run.ranks.push_back(FiguresOfSpans(plan, costs, recomputed, r, measured.ranks[r]));
  }
  run.timeline = std::move(measured);
  SumUp(&run);
  return run;
}

Simulation SimulateUpTo(const Plan& plan, const CostModel& costs, const std::vector<int>& next) {
  CheckCostsOf(plan, costs);
  Plan part = plan;
  for (size_t r = 0; r < part.programs.size(); ++r) {
    std::vector<Instruction>& program = part.programs[r];
    // An instruction that does not belong at its level has no time there.
    const auto end = std::find_if(program.begin(), program.begin() + next[r], [&](const auto& i) {
      return plan.level < Level::kComponent && OperandsOf(i.op) == Operands::kLayer;
    });
    program.erase(end, program.end());
  }
  Simulation run;
  run.timeline = plan.level < Level::kComponent
                     ? Simulator(part, costs, Keep::kTimeline, nullptr).RunUpTo()
                     : SimulateLanesUpTo(part, costs);
  const RecomputedCells recomputed(plan);
  for (size_t r = 0; r < part.programs.size(); ++r) {
    std::vector<Span>& spans = run.timeline.ranks[r];
    spans.resize(plan.programs[r].size(), kNever);
    run.ranks.push_back(FiguresOfSpans(plan, costs, recomputed, r, spans));
  }
  SumUp(&run);
  return run;
}

Simulation SimulateMeasured(const Plan& plan, const CostModel& costs,
                            const MeasuredStep& measured) {
  return Run(plan, costs, Keep::kTimeline, &measured);
}

}  // namespace contraflow
