#include "compiler/simulate/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/layer_cost.h"
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

/// Throws Error if a list of bytes is not for a plan with so many stages.
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

/// Total of the activations of one rank, instruction by instruction. Whatever begins or ends the
/// life of one runs on the compute lane, so program order is the order in time; all but the end of
/// a forward that is recomputed.
class MemoryWalk {
 public:
  MemoryWalk(const Plan& plan, const CostModel& costs)
      : plan_(plan), recomputed_(plan), cells_(BytesOfCells(costs, recomputed_, plan.stages)) {
    if (plan.layers > 0) weights_left_ = {plan.stages, plan.microbatches};
  }

  void Run(const Program& program, MemoryFigures* figures) {
    held_ = {};
    ending_.clear();
    for (size_t index = 0; index < program.size(); ++index) {
      const Instruction& i = program[index];
      const bool whole = OperandsOf(i.op) != Operands::kLayer;
      if (!ending_.empty()) EndForwards(program, index);
      if (whole ? HasForward(i.op) : BeginsForward(i)) Begin(i);
      if (whole ? i.op == Op::R : recomputed_.Begins(i)) Hold(1, i.stage);
      if (Sum(held_) > figures->peak) {
        figures->arenas = held_;
        figures->peak = Sum(held_);
        figures->peak_index = static_cast<int>(index);
      }
      if (recomputed_.any() && HasForward(i.op) && recomputed_.Has(i.stage, i.microbatch)) {
        Hold(-1, i.stage);
      }
      if (!whole && recomputed_.Has(i.stage, i.microbatch) && EndsForward(plan_, i)) {
        if (LaneOf(i.op) == Lane::kAllToAll) {
          ending_.push_back(index);
        } else {
          Hold(-1, i.stage);
        }
      }
      if (whole ? HasBackward(i.op) : EndsBackward(i)) {
        const CellBytes& bytes = BytesOf(BackStage(i));
        At(Arena::kActivation) -= bytes.activation - bytes.stash;
      }
      if (whole ? HasWeight(i.op) : EndsWeights(i)) {
        At(Arena::kStash) -= BytesOf(BackStage(i)).stash;
      }
    }
  }

 private:
  int64_t& At(Arena arena) { return held_[static_cast<size_t>(arena)]; }

  const CellBytes& BytesOf(int stage) const { return cells_[static_cast<size_t>(stage)]; }

  void Begin(const Instruction& i) {
    const CellBytes& bytes = BytesOf(i.stage);
    At(Arena::kActivation) += bytes.activation - bytes.stash;
    At(Arena::kStash) += bytes.stash;
    if (plan_.layers > 0) weights_left_(i.stage, i.microbatch) = WeightParts(plan_, i.stage);
  }

  /// Drops what forwards that are recomputed leave, once they are known to have ended: they do on
  /// the all-to-all lane, beside which the compute lane goes on until it waits for it.
  void EndForwards(const Program& program, size_t index) {
    const Instruction& i = program[index];
    size_t known = LaneOf(i.op) == Lane::kAllToAll ? index : 0;  // of that lane all before it
    for (int k = 0; k < i.after_count; ++k) {
      const auto on = static_cast<size_t>(i.after[static_cast<size_t>(k)]);
      if (LaneOf(program[on].op) == Lane::kAllToAll) known = std::max(known, on + 1);
    }
    const auto ended = std::lower_bound(ending_.begin(), ending_.end(), known);
    for (auto end = ending_.begin(); end != ended; ++end) Hold(-1, program[*end].stage);
    ending_.erase(ending_.begin(), ended);
  }

  /// Bytes that a recomputed chunk makes again (1) or drops after its first forward (-1).
  void Hold(int sign, int stage) {
    const CellBytes& bytes = BytesOf(stage);
    const int64_t kept = bytes.input - bytes.kept_stash;
    At(Arena::kActivation) += sign * (bytes.activation - bytes.stash - kept);
    At(Arena::kStash) += sign * (bytes.stash - bytes.kept_stash);
  }

  /// True for the last weight part of a chunk.
  bool EndsWeights(const Instruction& i) {
    return (i.op == Op::MLP_W || i.op == Op::ATTN_W) && --weights_left_(i.stage, i.microbatch) == 0;
  }

  const Plan& plan_;
  const RecomputedCells recomputed_;
  const std::vector<CellBytes> cells_;  // by stage
  Arenas held_{};
  std::vector<size_t> ending_;  // COMBINE_F of forwards that are recomputed
  Grid<int> weights_left_;
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

/// The changes of rank r in the order of time, given when its instructions run.
std::vector<MemoryChange> ChangesOf(const Plan& plan, const CostModel& costs,
                                    const RecomputedCells& recomputed, size_t r,
                                    const std::vector<Span>& spans) {
  const std::vector<CellBytes> cells = BytesOfCells(costs, recomputed, plan.stages);
  const Program& program = plan.programs[r];
  std::vector<MemoryChange> changes;
  // Weight parts seen of a chunk, and the end of the latest.
  std::map<std::pair<int, int>, std::pair<int, Time>> weights;
  for (size_t at = 0; at < program.size(); ++at) {
    if (spans[at].start < 0) continue;  // never runs
    const Instruction& i = program[at];
    const CellBytes& memory = cells[static_cast<size_t>(i.stage)];
    const CellBytes& back = cells[static_cast<size_t>(BackStage(i))];
    const auto begin = [&](int64_t bytes, int64_t stash) {
      changes.push_back({spans[at].start, static_cast<int>(at), false, 1, bytes, stash});
    };
    const auto end = [&](Time time, int activations, int64_t bytes, int64_t stash) {
      changes.push_back({time, static_cast<int>(at), true, activations, bytes, stash});
    };
    const int64_t kept = memory.kept_stash;
    if (HasForward(i.op) || BeginsForward(i) || i.op == Op::RELOAD) {
      begin(memory.activation, memory.stash);
    }
    if (i.op == Op::OFFLOAD) end(spans[at].end, -1, -memory.activation, -memory.stash);
    // REDUCE and STEP have no micro-batch.
    if ((HasForward(i.op) || (i.layer >= 0 && EndsForward(plan, i))) &&
        recomputed.Has(i.stage, i.microbatch)) {
      end(spans[at].end, -1, memory.input - memory.activation, kept - memory.stash);
    }
    if (i.op == Op::R || recomputed.Begins(i)) {
      begin(memory.activation - memory.input, memory.stash - kept);
    }
    if (HasBackward(i.op) || EndsBackward(i)) {
      end(spans[at].end, 0, back.stash - back.activation, 0);
    }
    const bool part = i.op == Op::MLP_W || i.op == Op::ATTN_W;
    if (!part && !HasWeight(i.op)) continue;
    auto& [seen, weighed] = weights[{BackStage(i), BackMicrobatch(i)}];
    weighed = std::max(weighed, spans[at].end);
    if (!part || ++seen == WeightParts(plan, i.stage)) {
      end(weighed, -1, -back.stash, -back.stash);
      weights.erase({BackStage(i), BackMicrobatch(i)});
    }
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

/// The arenas at the peak of a rank whose copies run beside its compute lane, so that the order of
/// its program is not that in time.
void FollowInTime(const std::vector<MemoryChange>& changes, MemoryFigures* figures) {
  int64_t bytes = 0, stash = 0;
  for (const MemoryChange& change : changes) {
    bytes += change.bytes;
    stash += change.stash;
    if (bytes <= figures->peak) continue;
    figures->arenas = {bytes - stash, stash, 0, 0};
    figures->peak = bytes;
    figures->peak_index = change.index;
  }
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

std::vector<MemoryFigures> FixedOf(const Plan& plan, const CostModel& costs) {
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
    ranks[r].parameters = SumOf(memory.*parameters.of_stages, stages[r]);
    ranks[r].gradients = held(gradients, r, 2);
    ranks[r].optimizer = held(optimizer, r, 1);
    ranks[r].workspace = memory.workspace_bytes;
    if (plan.level != Level::kBuffer) ranks[r].messages = messages[r];
  }
  return ranks;
}

}  // namespace

std::vector<int64_t> RoomForActivations(const Plan& frame, const CostModel& costs,
                                        std::vector<int64_t> devices) {
  const std::vector<MemoryFigures> ranks = FixedOf(frame, costs);
  CF_ASSERT(devices.size() == ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) devices[r] -= ranks[r].fixed();
  return devices;
}

std::vector<MemoryFigures> MemoryOf(const Plan& plan, const CostModel& costs) {
  std::vector<MemoryFigures> ranks = FixedOf(plan, costs);
  if (plan.slots.empty() && OffloadedCells(plan).any()) {
    const Timeline timeline = Simulate(plan, costs).timeline;
    const RecomputedCells recomputed(plan);
    for (size_t r = 0; r < ranks.size(); ++r) {
      FollowInTime(ChangesOf(plan, costs, recomputed, r, timeline.ranks[r]), &ranks[r]);
    }
    return ranks;
  }
  MemoryWalk walk(plan, costs);
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (plan.slots.empty()) {
      walk.Run(plan.programs[r], &ranks[r]);
    } else {
      Place(plan.slots[r], plan.programs[r].size(), &ranks[r]);
    }
  }
  return ranks;
}

std::vector<std::vector<MemoryChange>> MemoryChanges(const Plan& plan, const CostModel& costs,
                                                     const Timeline& timeline) {
  const RecomputedCells recomputed(plan);
  std::vector<std::vector<MemoryChange>> ranks;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const std::vector<Span>& spans = timeline.ranks[r];
    ranks.push_back(plan.slots.empty() ? ChangesOf(plan, costs, recomputed, r, spans)
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
      {"gradients", figures.gradients},
      {"optimizer state", figures.optimizer},
      {"messages", figures.messages > 0 ? std::optional(figures.messages) : std::nullopt},
      {"workspace", figures.workspace > 0 ? std::optional(figures.workspace) : std::nullopt}};
  const char* separator = "; beside them ";
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
  std::vector<Held> held;
  Held now;
  for (const MemoryChange& change :
       ChangesOf(plan, costs, recomputed, rank, timeline.ranks[rank])) {
    now = {change.time, now.activations + change.activations, now.bytes + change.bytes};
    held.push_back(now);
  }
  return held;
}

void FollowActivations(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed,
                       size_t r, const std::vector<Span>& spans, RankFigures* figures) {
  const bool in_bytes = costs.memory && costs.memory->activation_bytes > 0;
  int activations = 0;
  int64_t bytes = 0;
  for (const MemoryChange& change : ChangesOf(plan, costs, recomputed, r, spans)) {
    activations += change.activations;
    bytes += change.bytes;
    const bool more_bytes = bytes > figures->peak_bytes;
    const bool more = activations > figures->peak_activations;
    if (more_bytes || (more && !in_bytes)) figures->peak_index = change.index;
    figures->peak_bytes = std::max(figures->peak_bytes, bytes);
    figures->peak_activations = std::max(figures->peak_activations, activations);
  }
}

}  // namespace contraflow
