#include "compiler/simulate/memory.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/engine.h"

namespace contraflow {
namespace {

using Arenas = std::array<int64_t, kArenaCount>;

int64_t Sum(const Arenas& arenas) {
  return std::accumulate(arenas.begin(), arenas.end(), int64_t{0});
}

/// The stages that each rank holds a copy of.
std::vector<std::vector<int>> StagesOfRank(const Plan& plan) {
  std::vector<std::vector<int>> stages(static_cast<size_t>(plan.ranks));
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    for (const int rank : holders[static_cast<size_t>(s)]) {
      stages[static_cast<size_t>(rank)].push_back(s);
    }
  }
  return stages;
}

/// Throws Error if a list of bytes is not for a plan with this many stages.
void CheckStages(const char* key, const std::vector<int64_t>& bytes, int stages) {
  if (bytes.size() <= 1 || bytes.size() == static_cast<size_t>(stages)) return;
  throw Error("`costs`: /memory/" + std::string(key) + ": is for " + std::to_string(bytes.size()) +
              " stages, this plan has " + std::to_string(stages) +
              "; give one number (every stage alike) or one for each stage");
}

std::optional<int64_t> SumOf(const std::vector<int64_t>& bytes, const std::vector<int>& stages) {
  if (bytes.empty()) return std::nullopt;
  int64_t sum = 0;
  for (const int s : stages) sum += bytes.size() == 1 ? bytes[0] : bytes[static_cast<size_t>(s)];
  return sum;
}

/// Weight components of a stage.
int WeightParts(const Plan& plan, int stage) {
  int parts = 0;
  for (int l = 0; l < plan.LayersOf(stage); ++l) parts += WeightParts(plan.KindOf(stage, l));
  return parts;
}

/// Amounts that a rank holds: activations, their bytes, and of those what is held up to W.
struct Amounts {
  int64_t activations = 0, bytes = 0, stash = 0;

  Amounts operator+(const Amounts& other) const {
    return {activations + other.activations, bytes + other.bytes, stash + other.stash};
  }
  Amounts operator-() const { return {-activations, -bytes, -stash}; }
  bool operator==(const Amounts&) const = default;
};

/// Amounts that the instructions of a plan take and give back.
class Lives {
 public:
  Lives(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed)
      : plan_(plan), recomputed_(recomputed), cells_(BytesOfCells(costs, recomputed, plan.stages)) {
    for (const CellBytes& cell : cells_)
      stashes_.push_back({cell.stash, cell.stash, cell.kept_stash});
  }

  Amounts TakenBy(const Instruction& i) const {
    Op op = i.op;
    if (OperandsOf(op) == Operands::kLayer) {
      if (!BeginsForward(i) && !recomputed_.Begins(i)) return {};
      op = BeginsForward(i) ? Op::F : Op::R;
    }
    if (IsMessage(op)) return {};
    const auto s = static_cast<size_t>(i.stage);
    return {Taken(op, kOneActivation), Taken(op, cells_[s]), Taken(op, stashes_[s])};
  }

  /// All instructions of a program must be given, in its order.
  Amounts GivenBy(const Instruction& i) {
    Op op = i.op;
    if (OperandsOf(op) == Operands::kLayer) {
      if (recomputed_.Has(i.stage, i.microbatch) && EndsForward(plan_, i)) {
        op = Op::F;
      } else if (EndsBackward(i)) {
        op = Op::B;
      } else if (EndsWeights(i)) {
        op = Op::W;
      } else {
        return {};
      }
    }
    if (IsMessage(op)) return {};
    const auto s = static_cast<size_t>(i.stage), back = static_cast<size_t>(BackStage(i));
    const bool again = HasForward(op) && recomputed_.Has(i.stage, i.microbatch);
    return {Given(op, kOneActivation, kOneActivation, again),
            Given(op, cells_[s], cells_[back], again),
            Given(op, stashes_[s], stashes_[back], again)};
  }

 private:
  /// True for the last weight part of a chunk.
  bool EndsWeights(const Instruction& i) {
    if (i.op != Op::MLP_W && i.op != Op::ATTN_W) return false;
    const auto left =
        weights_left_.try_emplace({i.stage, i.microbatch}, WeightParts(plan_, i.stage)).first;
    if (--left->second > 0) return false;
    weights_left_.erase(left);
    return true;
  }

  const Plan& plan_;
  const RecomputedCells& recomputed_;
  const std::vector<CellBytes> cells_;               // by stage
  std::vector<CellBytes> stashes_;                   // the same of what is held up to W
  std::map<std::pair<int, int>, int> weights_left_;  // parts, of chunks under way
};

/// Most that a rank may hold when an instruction has begun, however long others take. The compute
/// lane and the all-to-all lane each run in program order. The end of a life on the other lane
/// counts once the own lane has waited for it.
class MemoryWalk {
 public:
  MemoryWalk(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed)
      : lanes_(plan.level >= Level::kComponent), lives_(plan, costs, recomputed) {}

  /// Calls visit(index, Amounts) for every instruction that takes memory, of those with a time.
  template <typename Visit>
  void Run(const Program& program, const std::vector<Span>* spans, const Visit& visit) {
    held_ = {};
    compute_ = exchanges_ = {};
    offloads_.clear();
    gone_ = {{}};
    known_ = known_to_reload_ = 0;
    for (size_t index = 0; index < program.size(); ++index) {
      if (spans != nullptr && (*spans)[index].start < 0) continue;  // never runs
      const Instruction& i = program[index];
      const bool exchange = lanes_ && LaneOf(i.op) == Lane::kAllToAll;
      OneLane& own = exchange ? exchanges_ : compute_;
      OneLane& other = exchange ? compute_ : exchanges_;
      if (lanes_ && !IsMessage(i.op)) other.Await(program, i);
      const size_t known = !lanes_ ? offloads_.size() : offloads_.empty() ? 0 : Known(i);
      const Amounts taken = lives_.TakenBy(i), given = lives_.GivenBy(i);
      held_ = held_ + taken;
      if (taken != Amounts()) {
        visit(static_cast<int>(index),
              held_ + -gone_[known] + -own.given() + -other.given_before_wait());
      }
      if (given == Amounts()) continue;
      if (i.op == Op::OFFLOAD) {
        offloads_.push_back(static_cast<int>(index));
        gone_.push_back(gone_.back() + given);
      } else if (lanes_) {
        own.Give(index, given);
      } else {
        held_ = held_ + -given;
      }
    }
  }

 private:
  /// The ends of lives on a lane, and how many of them the other lane has waited for.
  class OneLane {
   public:
    void Give(size_t index, const Amounts& amounts) {
      given_ = given_ + amounts;
      pending_.push_back({index, amounts});
    }

    /// The other lane waits for what `i`, an instruction of it, runs after.
    void Await(const Program& program, const Instruction& i) {
      const bool exchange = LaneOf(i.op) == Lane::kAllToAll;
      for (int k = 0; k < i.after_count; ++k) {
        const auto on = static_cast<size_t>(i.after[static_cast<size_t>(k)]);
        const Lane lane = LaneOf(program[on].op);
        if (lane == (exchange ? Lane::kCompute : Lane::kAllToAll)) {
          waited_ = std::max(waited_, on + 1);
        }
      }
      while (!pending_.empty() && pending_.front().first < waited_) {
        before_wait_ = before_wait_ + pending_.front().second;
        pending_.pop_front();
      }
    }

    const Amounts& given() const { return given_; }
    const Amounts& given_before_wait() const { return before_wait_; }

   private:
    Amounts given_, before_wait_;
    std::deque<std::pair<size_t, Amounts>> pending_;  // after the wait
    size_t waited_ = 0;                               // instructions before this have ended
  };

  /// OFFLOADs that have ended when this begins: its lane or RELOAD has waited for them.
  size_t Known(const Instruction& i) {
    if (IsMessage(i.op) || i.op == Op::OFFLOAD) return known_;
    size_t& known = i.op == Op::RELOAD ? known_to_reload_ : known_;
    known = std::max(known, known_);
    for (int k = 0; k < i.after_count; ++k) {
      const auto next =
          std::upper_bound(offloads_.begin(), offloads_.end(), i.after[static_cast<size_t>(k)]);
      if (next == offloads_.begin() || *(next - 1) != i.after[static_cast<size_t>(k)]) continue;
      known = std::max(known, static_cast<size_t>(next - offloads_.begin()));
    }
    return known;
  }

  const bool lanes_;
  Lives lives_;
  Amounts held_;                 // taken; without lanes, less what was given back
  OneLane compute_, exchanges_;  // given back
  std::vector<int> offloads_;
  std::vector<Amounts> gone_;  // with this many OFFLOADs
  size_t known_ = 0, known_to_reload_ = 0;
};

/// The arenas, and the instruction at which most bytes of them are in use.
void Place(const std::vector<Slot>& slots, size_t instructions, MemoryFigures* figures) {
  figures->arenas = ArenaBytes(slots);
  figures->peak = Sum(figures->arenas);
  std::vector<int64_t> change(instructions + 1, 0);
  for (const Slot& slot : slots) {
    change[static_cast<size_t>(slot.first)] += slot.bytes;
    change[static_cast<size_t>(slot.last) + 1] -= slot.bytes;
  }
  int64_t live = 0, most = 0;
  for (size_t i = 0; i < instructions; ++i) {
    live += change[i];
    if (live <= most) continue;
    most = live;
    figures->peak_index = static_cast<int>(i);
  }
}

/// Memory changes of rank r in order of time, from the times of its instructions.
std::vector<MemoryChange> ChangesOf(const Program& program, const std::vector<Span>& spans,
                                    Lives* lives) {
  std::vector<MemoryChange> changes;
  for (size_t at = 0; at < program.size(); ++at) {
    if (spans[at].start < 0) continue;  // never runs
    const auto add = [&](Time time, bool end, const Amounts& by) {
      if (by == Amounts()) return;
      changes.push_back(
          {time, static_cast<int>(at), end, static_cast<int>(by.activations), by.bytes, by.stash});
    };
    add(spans[at].start, false, lives->TakenBy(program[at]));
    add(spans[at].end, true, -lives->GivenBy(program[at]));
  }
  std::sort(changes.begin(), changes.end(), [](const MemoryChange& a, const MemoryChange& b) {
    return std::tie(a.time, a.index, a.end) < std::tie(b.time, b.index, b.end);
  });
  return changes;
}

/// The same of a rank whose values lie in slots: those of one instruction together.
std::vector<MemoryChange> ChangesOfSlots(const std::vector<Slot>& slots,
                                         const std::vector<Span>& spans) {
  std::vector<int64_t> begins(spans.size(), 0), ends(spans.size(), 0);
  for (const Slot& slot : slots) {
    begins[static_cast<size_t>(slot.first)] += slot.bytes;
    ends[static_cast<size_t>(slot.last)] -= slot.bytes;
  }
  std::vector<MemoryChange> changes;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto add = [&](Time time, bool end, int64_t bytes) {
      if (bytes != 0) changes.push_back({time, static_cast<int>(i), end, 0, bytes, 0});
    };
    add(spans[i].start, false, begins[i]);
    add(spans[i].end, true, ends[i]);
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const MemoryChange& a, const MemoryChange& b) { return a.time < b.time; });
  return changes;
}

/// Bytes of one message to and from each neighbour of a rank: the largest of each directed edge.
std::vector<int64_t> MessageBytesOfRank(const Plan& plan, const CommCost& comm) {
  std::map<std::pair<int, int>, int64_t> edges;
  for (const Route& route : plan.routes) {
    for (size_t s = 1; s < route.ranks.size(); ++s) {
      const int from = route.ranks[s - 1], to = route.ranks[s];
      if (from == to) continue;
      const int64_t bytes = comm.SizeBetween(static_cast<int>(s) - 1).bytes;
      for (const auto& edge : {std::pair(from, to), std::pair(to, from)}) {
        edges[edge] = std::max(edges[edge], bytes);
      }
    }
  }
  std::vector<int64_t> bytes(static_cast<size_t>(plan.ranks), 0);
  for (const auto& [edge, largest] : edges) {
    bytes[static_cast<size_t>(edge.first)] += largest;
    bytes[static_cast<size_t>(edge.second)] += largest;
  }
  return bytes;
}

/// Shared parameters of the largest kGatheredStages of these stages.
int64_t Gathered(const MemoryCost& memory, const std::vector<int>& stages, const Copies& copies) {
  std::vector<int64_t> bytes;
  for (const int s : stages) {
    const int64_t all = SumOf(memory.parameter_bytes, {s}).value_or(0);
    const std::optional<int64_t> rest = SumOf(memory.parameter_rest, {s});
    if (rest) {
      bytes.push_back((copies.rest > 1 ? *rest : 0) + (copies.experts > 1 ? all - *rest : 0));
    } else {
      bytes.push_back(std::min(copies.experts, copies.rest) > 1 ? all : 0);
    }
  }
  std::ranges::sort(bytes, std::greater());
  bytes.resize(std::min(bytes.size(), kGatheredStages));
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

std::vector<MemoryFigures> FixedMemoryOf(const Plan& plan, const CostModel& costs) {
  const MemoryCost memory = costs.memory.value_or(MemoryCost{});
  for (const StateBytes& state : kStateBytes) {
    CheckStages(state.key, memory.*state.of_stages, plan.stages);
  }
  const std::vector<std::vector<int>> stages = StagesOfRank(plan);
  const std::vector<int64_t> messages = MessageBytesOfRank(plan, costs.comm);
  const Copies copies = CopiesOf(ParallelOf(plan, costs), plan.data_parallel);
  const auto held = [&](const StateBytes& state, size_t r, int zero) {
    const std::optional<int64_t> all = SumOf(memory.*state.of_stages, stages[r]);
    if (!all || memory.zero < zero) return all;
    const std::optional<int64_t> rest = SumOf(memory.*state.rest_of_stages, stages[r]);
    const auto part = [](int64_t bytes, int64_t among) { return (bytes + among - 1) / among; };
    // Bytes of no known kind may be of either.
    if (!rest) return std::optional(part(*all, std::min(copies.experts, copies.rest)));
    return std::optional(part(*all - *rest, copies.experts) + part(*rest, copies.rest));
  };
  const auto& [parameters, gradients, optimizer] = kStateBytes;
  std::vector<MemoryFigures> ranks(static_cast<size_t>(plan.ranks));
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].parameters = held(parameters, r, 3);
    if (memory.zero == 3) ranks[r].gathered = Gathered(memory, stages[r], copies);
    ranks[r].gradients = held(gradients, r, 2);
    ranks[r].optimizer = held(optimizer, r, 1);
    ranks[r].workspace = memory.workspace_bytes;
    if (plan.level != Level::kBuffer) ranks[r].messages = messages[r];
  }
  return ranks;
}

std::vector<int64_t> RoomForActivations(const Plan& frame, const CostModel& costs,
                                        std::vector<int64_t> devices) {
  const std::vector<MemoryFigures> ranks = FixedMemoryOf(frame, costs);
  CF_ASSERT(devices.size() == ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) devices[r] -= ranks[r].fixed();
  return devices;
}

std::vector<MemoryFigures> MemoryOf(const Plan& plan, const CostModel& costs) {
  std::vector<MemoryFigures> ranks = FixedMemoryOf(plan, costs);
  const RecomputedCells recomputed(plan);
  MemoryWalk walk(plan, costs, recomputed);
  for (size_t r = 0; r < ranks.size(); ++r) {
    MemoryFigures& figures = ranks[r];
    if (!plan.slots.empty()) {
      Place(plan.slots[r], plan.programs[r].size(), &figures);
      continue;
    }
    walk.Run(plan.programs[r], nullptr, [&figures](int index, const Amounts& held) {
      if (held.bytes <= figures.peak) return;
      figures.arenas = {held.bytes - held.stash, held.stash, 0, 0};
      figures.peak = held.bytes;
      figures.peak_index = index;
    });
  }
  return ranks;
}

std::vector<std::vector<MemoryChange>> MemoryChanges(const Plan& plan, const CostModel& costs,
                                                     const Timeline& timeline) {
  const RecomputedCells recomputed(plan);
  Lives lives(plan, costs, recomputed);
  std::vector<std::vector<MemoryChange>> ranks;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const std::vector<Span>& spans = timeline.ranks[r];
    ranks.push_back(plan.slots.empty() ? ChangesOf(plan.programs[r], spans, &lives)
                                       : ChangesOfSlots(plan.slots[r], spans));
  }
  return ranks;
}

std::string Breakdown(const MemoryFigures& figures) {
  constexpr const char* kNames[] = {"activations without stashes", "stashes", "gradients in flight",
                                    "exchange buffers"};
  static_assert(std::size(kNames) == kArenaCount);
  std::string text;
  const auto add = [&text](const char* name, int64_t bytes) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + FormatCount(bytes);
  };
  for (size_t a = 0; a < kArenaCount; ++a) {
    // Below level buffer the last two are not accounted.
    if (a < 2 || figures.arenas[a] > 0) add(kNames[a], figures.arenas[a]);
  }
  const std::pair<const char*, std::optional<int64_t>> beside[] = {
      {"parameters", figures.parameters},
      {"gathered parameters",
       figures.gathered > 0 ? std::optional(figures.gathered) : std::nullopt},
      {"gradients", figures.gradients},
      {"optimizer state", figures.optimizer},
      {"messages", figures.messages > 0 ? std::optional(figures.messages) : std::nullopt},
      {"workspace", figures.workspace > 0 ? std::optional(figures.workspace) : std::nullopt}};
  const char* separator = "; also ";
  for (const auto& [name, bytes] : beside) {
    if (!bytes) continue;
    text += separator + std::string(name) + " " + FormatCount(*bytes);
    separator = ", ";
  }
  return text;
}

std::vector<Held> HeldOverTime(const Plan& plan, const CostModel& costs,
                               const RecomputedCells& recomputed, const Timeline& timeline, int r) {
  const auto rank = static_cast<size_t>(r);
  Lives lives(plan, costs, recomputed);
  std::vector<Held> held;
  Held now;
  for (const MemoryChange& change : ChangesOf(plan.programs[rank], timeline.ranks[rank], &lives)) {
    now = {change.time, now.activations + change.activations, now.bytes + change.bytes};
    held.push_back(now);
  }
  return held;
}

void FollowActivations(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed,
                       size_t r, const std::vector<Span>& spans, RankFigures* figures) {
  const bool in_bytes = costs.memory && costs.memory->activation_bytes > 0;
  const auto raise = [&](int index, const Amounts& held) {
    const bool more_bytes = held.bytes > figures->peak_bytes;
    const bool more = held.activations > figures->peak_activations;
    if (more_bytes || (more && !in_bytes)) figures->peak_index = index;
    figures->peak_bytes = std::max(figures->peak_bytes, held.bytes);
    if (more) figures->peak_activations = static_cast<int>(held.activations);
  };
  MemoryWalk(plan, costs, recomputed).Run(plan.programs[r], &spans, raise);
}

}  // namespace contraflow
