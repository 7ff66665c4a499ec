// Which chunks share the lanes is decided by trying: a few rules of sharing, each run to its end,
// and the one with the least makespan is written down, or one that is nearly as fast and holds
// less. The serial run is among them, so sharing never loses.

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/lower/passes.h"
#include "compiler/lower/sharing.h"
#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/lanes.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/engine.h"

namespace contraflow {
namespace {

/// Writes the log of a run into programs: lanes, and an event for what comes over from another
/// lane.
class Writer {
 public:
  Writer(const Plan& plan, const CostModel& costs, bool serial)
      : plan_(plan),
        serial_(serial),
        owner_(plan),
        ranks_(plan.programs.size()),
        forward_(plan.stages, plan.microbatches, -1),
        recompute_(forward_),
        backward_(forward_),
        input_(forward_),
        gradient_(forward_) {
    result_ = plan;
    result_.level = Level::kComponent;
    if (OffloadedCells(plan).any()) offload_ = reload_ = number_ = forward_;
    SetLayers(costs, &result_);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Program& program = result_.programs[r];
      program.clear();
      ranks_[r].weight.assign(static_cast<size_t>(plan.stages), -1);
      ranks_[r].reduce.assign(static_cast<size_t>(plan.stages), -1);
      int offloads = 0;
      for (const Instruction& i : plan.programs[r]) {
        if (WorkOf(i.op) == Work::kCompute) {
          ranks_[r].chunks.push_back(&i);
          ranks_[r].gone.push_back(offloads);
        }
        if (i.op == Op::OFFLOAD) number_(i.stage, i.microbatch) = offloads++;
        if (i.op != Op::RELOAD) continue;
        ranks_[r].reloads.push_back({ranks_[r].chunks.size(), &i, offloads});
      }
    }
  }

  Plan Write(const std::vector<Event>& log) {
    std::vector<size_t> length(ranks_.size(), 0);
    for (const Event& event : log) ++length[static_cast<size_t>(event.rank)];
    for (size_t r = 0; r < length.size(); ++r) result_.programs[r].reserve(length[r]);
    for (const Event& event : log) Write(event);
    return std::move(result_);
  }

 private:
  struct RankState {
    std::vector<const Instruction*> chunks;
    int last[2] = {-1, -1};    // last instruction of the compute and the all-to-all lane
    int before[2] = {-1, -1};  // the same when its present chunk began
    bool begun[2] = {false, false};
    int chunk = -1;
    std::vector<int> weight, reduce;           // last weight part and REDUCE of each stage
    std::vector<int> gone;                     // of each chunk: OFFLOADs before it
    std::vector<std::pair<int, int>> written;  // numbers and places of OFFLOADs, as on their lane
    struct Reload {
      size_t chunk;  // that it stands before
      const Instruction* instruction;
      int gone;
    };
    std::vector<Reload> reloads;  // not written yet
  };

  bool SameRank(int stage, int other, int m) const { return owner_(stage, m) == owner_(other, m); }

  void Write(const Event& event) {
    if (event.chunk >= 0) Reload(event);
    Append(event);
    if (EndsForward(result_, event.instruction)) Offload(event);
  }

  /// The RELOADs that stand before the chunk of this component, after all that was begun so far.
  void Reload(const Event& event) {
    RankState& rank = ranks_[static_cast<size_t>(event.rank)];
    std::erase_if(rank.reloads, [&](const auto& reload) {
      Instruction i = *reload.instruction;
      if (reload.chunk > static_cast<size_t>(event.chunk)) return false;
      // If lanes are shared its forward may still be under way: then it comes later.
      if (offload_(i.stage, i.microbatch) < 0) return false;
      Program& program = result_.program(event.rank);
      i.lane = Lane::kReload;
      for (const int last : rank.last) After(program, last, &i);
      After(program, offload_(i.stage, i.microbatch), &i);
      Gone(rank, reload.gone, &i);
      reload_(i.stage, i.microbatch) = static_cast<int>(program.size());
      program.push_back(i);
      return true;
    });
  }

  /// Makes an instruction that takes memory wait for the first n OFFLOADs, by the last of them on
  /// their lane. With shared lanes, some of them may not be written yet.
  static void Gone(const RankState& rank, int count, Instruction* i) {
    const auto last = std::find_if(rank.written.rbegin(), rank.written.rend(),
                                   [count](const auto& offload) { return offload.first < count; });
    if (last != rank.written.rend()) AddEvent(last->second, i);
  }

  /// The OFFLOAD of a forward that this component ends.
  void Offload(const Event& event) {
    const int s = event.instruction.stage, m = event.instruction.microbatch;
    if (number_.empty() || number_(s, m) < 0) return;
    Program& program = result_.program(event.rank);
    Instruction i = CellOp(Op::OFFLOAD, s, m);
    i.lane = Lane::kOffload;
    After(program, forward_(s, m), &i);
    offload_(s, m) = static_cast<int>(program.size());
    ranks_[static_cast<size_t>(event.rank)].written.push_back({number_(s, m), offload_(s, m)});
    program.push_back(i);
  }

  void Append(const Event& event) {
    RankState& rank = ranks_[static_cast<size_t>(event.rank)];
    Program& program = result_.program(event.rank);
    const int index = static_cast<int>(program.size());
    Instruction i = event.instruction;
    i.lane = LaneOf(i.op);
    switch (WorkOf(i.op)) {
      case Work::kComponent:
      case Work::kAllToAll:
        if (BeginsForward(i) || (IsRecompute(i.op) && recompute_(i.stage, i.microbatch) < 0)) {
          Gone(rank, rank.gone[static_cast<size_t>(event.chunk)], &i);
        }
        if (serial_) Bar(event, program, &i);
        Follow(program, &i, index, event.rank);
        break;
      case Work::kSend: {
        const int made_by = (i.op == Op::SEND_F ? forward_ : backward_)(i.stage, i.microbatch);
        After(program, made_by, &i);
        // Serially, what a chunk made leaves when all of the chunk has ended; the chunk after it
        // may have begun in that moment.
        const bool begun = made_by <= std::max(rank.before[0], rank.before[1]);
        for (const int last : begun ? rank.before : rank.last) {
          if (serial_) After(program, last, &i);
        }
        break;
      }
      case Work::kRecv:
        (i.op == Op::RECV_F ? input_ : gradient_)(i.stage, i.microbatch) = index;
        break;
      case Work::kReduce:
        After(program, rank.weight[static_cast<size_t>(i.stage)], &i);
        rank.reduce[static_cast<size_t>(i.stage)] = index;
        break;
      case Work::kStep:
        After(program, rank.reduce[static_cast<size_t>(i.stage)], &i);
        break;
      case Work::kOffload:
      case Work::kReload:
      case Work::kCompute:
        CF_ASSERT(false && "chunks have become components, and copies have no events");
    }
    if (i.lane == Lane::kCompute) rank.last[0] = index;
    if (i.lane == Lane::kAllToAll) rank.last[1] = index;
    program.push_back(i);
  }

  /// Makes a component wait for the one before it in its chain, or for the inputs of the first.
  void Follow(const Program& program, Instruction* i, int index, int r) {
    const int s = i->stage, m = i->microbatch;
    if (i->op == Op::MLP_W || i->op == Op::ATTN_W) {
      // After its backward part on the same lane.
      ranks_[static_cast<size_t>(r)].weight[static_cast<size_t>(i->stage)] = index;
      return;
    }
    int& chain = (IsRecompute(i->op)          ? recompute_
                  : IsForwardComponent(i->op) ? forward_
                                              : backward_)(s, m);
    int follows = chain;
    // After the forward that it runs again.
    if (IsRecompute(i->op) && chain < 0) follows = forward_(s, m);
    if (BeginsForward(*i) && i->stage > 0) {
      follows = SameRank(i->stage, i->stage - 1, i->microbatch)
                    ? forward_(i->stage - 1, i->microbatch)
                    : input_(s, m);
    } else if (BeginsBackward(result_, *i)) {
      if (i->stage + 1 == plan_.stages) {
        follows = forward_(s, m);
      } else {
        follows = SameRank(i->stage, i->stage + 1, i->microbatch)
                      ? backward_(i->stage + 1, i->microbatch)
                      : gradient_(s, m);
      }
      After(program, recompute_(s, m), i);
      if (!reload_.empty()) After(program, reload_(s, m), i);
    }
    After(program, follows, i);
    chain = index;
  }

  /// Serially, a chunk's first instruction of either lane waits until the chunk before has ended on
  /// both and all that the chunk needs is there.
  void Bar(const Event& event, const Program& program, Instruction* i) {
    RankState& rank = ranks_[static_cast<size_t>(event.rank)];
    if (rank.chunk != event.chunk) {
      rank.chunk = event.chunk;
      for (const int lane : {0, 1}) {
        rank.before[lane] = rank.last[lane];
        rank.begun[lane] = false;
      }
    }
    const int lane = i->lane == Lane::kCompute ? 0 : 1;
    if (rank.begun[lane]) return;
    rank.begun[lane] = true;
    After(program, rank.before[1 - lane], i);
    const Instruction& chunk = *rank.chunks[static_cast<size_t>(event.chunk)];
    if (HasForward(chunk.op)) After(program, input_(chunk.stage, chunk.microbatch), i);
    if (HasBackward(chunk.op)) {
      After(program, gradient_(BackStage(chunk), BackMicrobatch(chunk)), i);
      if (!reload_.empty()) After(program, reload_(BackStage(chunk), BackMicrobatch(chunk)), i);
    }
  }

  /// Adds an event, unless it is the lane's order anyway.
  static void After(const Program& program, int index, Instruction* i) {
    if (index < 0 || program[static_cast<size_t>(index)].lane == i->lane) return;
    AddEvent(index, i);
  }

  const Plan& plan_;
  const bool serial_;
  const Owners owner_;
  std::vector<RankState> ranks_;
  // Positions by stage and micro-batch in the program of the rank that owns them: the last
  // component so far of each chain, RECV_F and RECV_B.
  Grid<int> forward_, recompute_, backward_, input_, gradient_;
  Grid<int> offload_, reload_;  // empty where nothing is offloaded, as are
  Grid<int> number_;            // OFFLOADs of a rank in the order of the cells' plan; -1: none
  Plan result_;
};

/// The rules that are tried; `typical` is the time of a component. Among many more (windows 1 to 6,
/// five patiences, both orders) these leave 0.1 % on average of what the best gives, over schedules
/// and costs of all kinds. More chunks under way at once would be faster still, and make GPipe's
/// memory of every schedule.
std::vector<LanePolicy> Candidates(Time typical) {
  return {{.window = 1},
          {.window = 2, .free_order = true},
          {.window = 3, .free_order = true, .patience = typical},
          {.window = 6, .free_order = true},
          {.window = 6, .free_order = true, .patience = typical / 4},
          {.window = 6, .free_order = true, .patience = typical},
          {.window = 6, .free_order = true, .patience = 2 * typical},
          {.window = 6, .patience = 2 * typical}};
}

/// The plan as it is where nothing leaves for the host.
Plan WithoutCopies(Plan plan) {
  for (Program& program : plan.programs) {
    std::erase_if(program, [](const Instruction& i) { return IsHostCopy(i.op); });
  }
  return plan;
}

/// How much a rank may hold.
class Memory {
 public:
  /// `limits`: of each rank, or empty.
  Memory(const Plan& plan, const CostModel& costs, std::vector<int64_t> limits)
      : unit_(costs),
        limits_(std::move(limits)),
        offloads_(OffloadedCells(plan).any()),
        recomputes_(RecomputedCells(plan).any()),
        serial_(Simulate(plan, costs)),
        largest_(plan.programs.size(), unit_.activation()) {
    for (const Route& route : plan.routes) {
      for (size_t s = 0; s < route.ranks.size() && unit_.bytes(); ++s) {
        int64_t& largest = largest_[static_cast<size_t>(route.ranks[s])];
        largest = std::max(largest, costs.memory->activation(static_cast<int>(s)));
      }
    }
    for (const RankFigures& rank : serial_.ranks) own_ = std::max(own_, unit_.Peak(rank));
    limits_.resize(plan.programs.size(), own_);
    if (offloads_) serial_ = Simulate(WithoutCopies(plan), costs);
  }

  /// The most activations that each rank may hold, in the order to be tried: what the fullest rank
  /// of the schedule holds, and, where that is more, what the limit allows.
  std::vector<std::vector<int>> Caps() const {
    // A run that shares lanes knows nothing of copies: it holds all that the schedule does without.
    if (offloads_) return {CapsFor(0)};
    std::vector<std::vector<int>> caps = {CapsFor(own_)};
    if (std::ranges::max(limits_) > own_) caps.push_back(CapsFor(INT64_MAX));
    // Most cells that wait hold little of what an activation does.
    if (recomputes_) caps.push_back(CapsFor(0));
    return caps;
  }

  bool Fits(const Plan& plan, const CostModel& costs) const {
    const Simulation run = Simulate(plan, costs);
    return std::ranges::equal(run.ranks, limits_, [&](const RankFigures& rank, int64_t limit) {
      return unit_.Peak(rank) <= limit;
    });
  }

 private:
  /// For this much, within the limits; no fewer than the chunks one after the other need.
  std::vector<int> CapsFor(int64_t most) const {
    std::vector<int> caps;
    for (size_t r = 0; r < serial_.ranks.size(); ++r) {
      const int64_t limit = std::min(most, limits_[r]);
      caps.push_back(static_cast<int>(std::clamp<int64_t>(limit / largest_[r],
                                                          serial_.ranks[r].peak_activations,
                                                          std::numeric_limits<int>::max())));
    }
    return caps;
  }

  const MemoryLimit unit_;
  std::vector<int64_t> limits_;  // of each rank
  const bool offloads_, recomputes_;
  Simulation serial_;             // without copies to the host
  std::vector<int64_t> largest_;  // of each rank: of the activations of its stages
  int64_t own_ = 0;
};

/// A rule of sharing and what came of it.
struct Try {
  Time makespan;
  int activations;
  LanePolicy policy;
  const std::vector<int>* caps;
};

Time MakespanOf(const Plan& plan, const CostModel& costs) {
  return Simulate(plan, costs, Keep::kFigures).makespan;
}

/// The best first: of those that are within a hundredth of the fastest the one that holds least.
void SortBestFirst(std::vector<Try>* tries) {
  Time best = std::numeric_limits<Time>::max();
  for (const Try& t : *tries) best = std::min(best, t.makespan);
  const auto key = [best](const Try& t) {
    const bool slow = t.makespan - best > best / 100;
    return slow ? std::tuple(true, t.makespan, Time{t.activations})
                : std::tuple(false, Time{t.activations}, t.makespan);
  };
  std::stable_sort(tries->begin(), tries->end(),
                   [&](const Try& a, const Try& b) { return key(a) < key(b); });
}

}  // namespace

Plan ExpandComponents(const Plan& plan, const CostModel& costs, Overlap overlap,
                      const std::vector<int64_t>& limits) {
  CF_ASSERT(plan.level == Level::kComm && costs.components());
  const Memory memory(plan, costs, limits);
  const std::vector<std::vector<int>> caps = memory.Caps();
  const LanePolicy serially = {.serial = true};
  ChunkShapes serial_shapes(costs, true);
  const auto write = [&](const LanePolicy& policy, ChunkShapes* shapes,
                         const std::vector<int>& cap) {
    const SharedRun run = ShareLanes(plan, costs, shapes, policy, cap, true);
    return Writer(plan, costs, policy.serial).Write(run.log);
  };
  if (overlap == Overlap::kPublished) return write(serially, &serial_shapes, caps.front());

  const Time typical = TypicalComponent(costs);
  ChunkShapes shapes(costs, false);
  std::vector<Try> tries;
  for (const std::vector<int>& cap : caps) {
    for (const LanePolicy& policy : Candidates(typical)) {
      const SharedRun run = ShareLanes(plan, costs, &shapes, policy, cap, false);
      const auto peak = std::max_element(run.peak_activations.begin(), run.peak_activations.end());
      tries.push_back({run.makespan, *peak, policy, &cap});
    }
  }
  SortBestFirst(&tries);
  const Time serial =
      ShareLanes(plan, costs, &serial_shapes, serially, caps.front(), false).makespan;
  const bool offloads = OffloadedCells(plan).any();
  std::optional<Plan> best;
  for (const Try& t : tries) {
    if (t.makespan > serial) continue;
    Plan shared = write(t.policy, &shapes, *t.caps);
    if (!memory.Fits(shared, costs)) continue;
    if (!offloads) return shared;
    // A run that shares lanes knows nothing of waiting for RELOAD.
    if (!best || MakespanOf(shared, costs) < MakespanOf(*best, costs)) best = std::move(shared);
  }
  // With R the next cell's activation is there as soon as lanes are shared, which may be too much;
  // then each chunk still has its weight gradients in its own gaps.
  for (ChunkShapes* const own : {&serial_shapes, &shapes}) {
    Plan run = write(serially, own, caps.front());
    if (own == &shapes && !memory.Fits(run, costs)) continue;
    if (!best || MakespanOf(run, costs) < MakespanOf(*best, costs)) best = std::move(run);
  }
  return *std::move(best);
}

}  // namespace contraflow
