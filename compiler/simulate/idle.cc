#include "compiler/simulate/idle.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>

#include "compiler/plan/access.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/waits.h"

namespace contraflow {
namespace {

struct CauseText {
  std::string_view name, meaning;
};
constexpr std::array<CauseText, kIdleCauses> kTexts = {{
    {"fill", "before its first instruction: the input is still being computed elsewhere"},
    {"drain", "no forward is left: the input is still being computed elsewhere, or the step ends"},
    {"dependency", "in between: the input is still being computed elsewhere"},
    {"link", "the input is on its way from another rank, or waits for the link"},
    {"queue", "the input is made, and its message waits for its turn in the queue of a rank"},
    {"all-to-all", "an all-to-all runs, here or where the input is being computed"},
    {"host", "a copy to or from the memory of the host runs"},
    {"reduce", "gradients are being summed"},
    {"memory", "a forward could run, but the rank would hold more than it ever does in this plan"},
    {"order", "something could run that the plan runs later"},
    {"overhead", "everything was there: the launch, or a processor that was busy otherwise"},
    {"standstill", "the rank goes no further: what it waits for never comes"},
}};

/// True for what begins a chunk, and with it takes the memory of an activation.
bool TakesMemory(const Instruction& i) {
  return i.op == Op::F || i.op == Op::R || (i.layer == 0 && Repeated(i.op) == Op::ATTN_F);
}

/// The first that could run of the rest of a program.
struct Candidate {
  Time ready = std::numeric_limits<Time>::max();
  int index = -1;
};

/// When the data of each instruction of a rank was there, whatever the order on its lanes.
std::vector<Time> DataTimes(const Plan& plan, const Accesses& accesses, const Timeline& timeline,
                            int rank) {
  const Program& program = plan.program(rank);
  const std::vector<Span>& spans = timeline.ranks[static_cast<size_t>(rank)];
  std::vector<Time> ready(program.size(), 0);
  std::unordered_map<uint64_t, Time> made;      // of each value, when
  std::unordered_map<uint64_t, Time> backward;  // of each cell, its end; opaque stages
  std::vector<Time> gradients(static_cast<size_t>(plan.stages), 0);
  const auto cell = [](int stage, int m) {
    return static_cast<uint64_t>(stage) << 32 | static_cast<uint32_t>(m);
  };
  std::vector<Access> touched;
  for (size_t at = 0; at < program.size(); ++at) {
    const Instruction& i = program[at];
    accesses.Of(i, &touched);
    for (const Access& access : touched) {
      const uint64_t key = cell(access.stage, access.microbatch) << 12 |
                           static_cast<uint64_t>(access.layer + 1) << 5 |
                           static_cast<uint64_t>(access.value);
      const auto found = made.find(key);
      if (found != made.end()) ready[at] = std::max(ready[at], found->second);
      if (access.makes) made[key] = spans[at].end;
    }
    if (i.op == Op::W) ready[at] = std::max(ready[at], backward[cell(i.stage, i.microbatch)]);
    if (HasBackward(i.op)) backward[cell(BackStage(i), BackMicrobatch(i))] = spans[at].end;
    const auto s = static_cast<size_t>(BackStage(i));
    if (i.op == Op::STEP) ready[at] = gradients[s];
    const bool adds = HasWeight(i.op) || i.op == Op::MLP_W || i.op == Op::ATTN_W;
    if (adds || i.op == Op::REDUCE) gradients[s] = std::max(gradients[s], spans[at].end);
  }
  return ready;
}

/// A run, and what follows from all of it.
struct WholeRun {
  WholeRun(const Plan& its_plan, const CostModel& its_costs, const Simulation& its_simulation)
      : plan(its_plan),
        costs(its_costs),
        simulation(its_simulation),
        waits(plan, costs, simulation.timeline),
        accesses(plan),
        instructions(InstructionCount(plan)),
        recomputed(plan),
        cells(BytesOfCells(costs, recomputed, plan.stages)) {}

  const Plan& plan;
  const CostModel& costs;
  const Simulation& simulation;
  const Waits waits;
  const Accesses accesses;
  const int64_t instructions;
  const RecomputedCells recomputed;
  const std::vector<CellBytes> cells;  ///< by stage
};

class RankIdle {
 public:
  RankIdle(const WholeRun& run, int rank)
      : run_(run),
        waits_(run.waits),
        rank_(rank),
        program_(run.plan.program(rank)),
        held_(HeldOverTime(run.plan, run.costs, run.recomputed, run.simulation.timeline, rank)) {
    for (int i = 0; i < static_cast<int>(program_.size()); ++i) {
      if (LaneOf(Op(i)) != Lane::kCompute) continue;
      if (waits_.SpanOf({rank_, i}).start >= 0) {
        lane_.push_back(i);
      } else if (stands_at_ < 0) {
        stands_at_ = i;
      }
    }
    LookAhead(DataTimes(run.plan, run.accesses, run.simulation.timeline, rank));
  }

  std::vector<Idle> Attribute() {
    const Time makespan = run_.simulation.makespan;
    Time free = 0;
    for (size_t k = 0; k < lane_.size(); ++k) {
      const Span& span = waits_.SpanOf({rank_, lane_[k]});
      if (span.start > free) Explain(k, {free, span.start});
      free = std::max(free, span.end);
    }
    if (makespan > free) {
      const IdleCause cause = stands_at_ < 0 ? IdleCause::kDrain : IdleCause::kStandstill;
      idle_.push_back({{free, makespan}, cause, stands_at_});
    }
    return std::move(idle_);
  }

 private:
  const Instruction& At(int index) const { return program_[static_cast<size_t>(index)]; }
  contraflow::Op Op(int index) const { return At(index).op; }

  /// For each place on the lane what of the rest could run first: of what takes memory, and of
  /// what does not.
  void LookAhead(const std::vector<Time>& data) {
    takers_.resize(lane_.size() + 1);
    others_.resize(lane_.size() + 1);
    for (size_t k = lane_.size(); k-- > 0;) {
      takers_[k] = takers_[k + 1];
      others_[k] = others_[k + 1];
      const Instruction& i = At(lane_[k]);
      Candidate& first = TakesMemory(i) ? takers_[k] : others_[k];
      const Time ready = data[static_cast<size_t>(lane_[k])];
      if (ready <= first.ready) first = {ready, lane_[k]};
      const bool forward = HasForward(i.op) || IsForwardComponent(i.op);
      if (forward && !IsRecompute(i.op)) last_forward_ = std::max(last_forward_, k);
    }
  }

  /// A gap before place k of the lane.
  void Explain(size_t k, const Span& gap) {
    const size_t before = idle_.size();
    Time until = gap.end;
    // From when on something else could have run instead.
    const auto instead = [&](const Candidate& first, IdleCause cause) {
      const Time from = std::max(gap.start, first.ready);
      if (first.index < 0 || from >= until) return;
      idle_.push_back({{from, until}, cause, lane_[k], {rank_, first.index}});
      until = from;
    };
    instead(others_[k + 1], IdleCause::kOrder);
    const Candidate& taker = takers_[k + 1];
    instead(taker, HasRoom(gap.start, taker) ? IdleCause::kOrder : IdleCause::kMemory);
    Follow(k, {gap.start, until});
    std::reverse(idle_.begin() + static_cast<std::ptrdiff_t>(before), idle_.end());
  }

  /// True if the rank would hold no more with it than it does at some other time.
  bool HasRoom(Time at, const Candidate& taker) const {
    if (taker.index < 0) return true;
    const auto after = std::upper_bound(held_.begin(), held_.end(), at,
                                        [](Time time, const Held& held) { return time < held.at; });
    const Held held = after == held_.begin() ? Held{} : *(after - 1);
    const RankFigures& figures = run_.simulation.ranks[static_cast<size_t>(rank_)];
    const CellBytes& cell = run_.cells[static_cast<size_t>(At(taker.index).stage)];
    if (cell.activation == 0) return held.activations < figures.peak_activations;
    const int64_t more = cell.activation - (IsRecompute(Op(taker.index)) ? cell.input : 0);
    return held.bytes + more <= figures.peak_bytes;
  }

  /// Follows the causes of a gap, latest first: back along the chain of what the next instruction
  /// waited for.
  void Follow(size_t k, const Span& gap) {
    const auto put = [&](Time from, Time to, IdleCause cause, InstructionRef because) {
      const Span when{std::max(from, gap.start), std::min(to, gap.end)};
      if (when.start < when.end) idle_.push_back({when, cause, lane_[k], because});
    };
    InstructionRef at{rank_, lane_[k]};
    int64_t links = run_.instructions;
    for (Time start = waits_.SpanOf(at).start; start > gap.start;) {
      // An unsound plan may wait in a circle, of which no link takes time.
      if (--links < 0) return put(gap.start, start, IdleCause::kDependency, at);
      std::optional<Wait> wait = waits_.Last(at);
      const std::optional<Wait> made = waits_.Made(at);
      if (made && made->until < start) {
        put(made->until, start, IdleCause::kQueue, wait->on);
        start = made->until;
        wait = made;
        if (start <= gap.start) return;
      }
      const Time until = wait ? std::min(wait->until, start) : 0;
      // At level compute messages are not written down.
      put(until, start,
          run_.plan.level == Level::kCompute ? IdleCause::kLink : IdleCause::kOverhead, at);
      if (!wait) return;
      at = wait->on;
      const Time began = std::min(waits_.SpanOf(at).start, until);
      put(began, until, CauseOf(k, at), at);
      start = began;
    }
  }

  IdleCause CauseOf(size_t k, InstructionRef running) const {
    switch (WorkOf(waits_.At(running).op)) {
      case Work::kSend:
      case Work::kRecv:
        return IdleCause::kLink;
      case Work::kAllToAll:
        return IdleCause::kAllToAll;
      case Work::kOffload:
      case Work::kReload:
        return IdleCause::kHost;
      case Work::kReduce:
        return IdleCause::kReduce;
      case Work::kCompute:
      case Work::kComponent:
      case Work::kStep:
        break;
    }
    if (k == 0) return IdleCause::kFill;
    return k > last_forward_ ? IdleCause::kDrain : IdleCause::kDependency;
  }

  const WholeRun& run_;
  const Waits& waits_;
  const int rank_;
  const Program& program_;
  const std::vector<Held> held_;
  std::vector<int> lane_;                   // indices of the instructions on the compute lane
  int stands_at_ = -1;                      // the first there that never runs; -1: all run
  std::vector<Candidate> takers_, others_;  // by place on the lane
  size_t last_forward_ = 0;                 // its place on the lane
  std::vector<Idle> idle_;
};

}  // namespace

std::string_view Name(IdleCause cause) { return kTexts[static_cast<size_t>(cause)].name; }

std::string_view Meaning(IdleCause cause) { return kTexts[static_cast<size_t>(cause)].meaning; }

std::vector<std::vector<Idle>> AttributeIdle(const Plan& plan, const CostModel& costs,
                                             const Simulation& simulation) {
  const WholeRun run(plan, costs, simulation);
  std::vector<std::vector<Idle>> idle;
  for (int r = 0; r < plan.ranks; ++r) idle.push_back(RankIdle(run, r).Attribute());
  return idle;
}

}  // namespace contraflow
