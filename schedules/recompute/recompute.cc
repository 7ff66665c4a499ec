// Recompute (Chen et al., arXiv 1604.06174) of whole chunks, as Megatron's "full" granularity has
// it: a chunk keeps its stage input only, and its forward is run again before its backward. That
// trades an activation of every micro-batch under way for one input, and f for every micro-batch.

#include "schedules/recompute/recompute.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

// Memory can be bought with time where it is needed. Ranks do not share memory, so each is looked
// at alone, and since more recompute never holds more, what one rank needs cannot spoil another.

/// Subsets of more stages than this are not all tried.
constexpr size_t kMostTried = 10;

/// The most that one rank holds. Whatever begins or ends an activation runs on the compute lane, so
/// program order is the order in time.
class RankPeak {
 public:
  /// `cells`: bytes by stage.
  RankPeak(const Program& program, const std::vector<CellBytes>& cells)
      : program_(program), cells_(cells) {}

  /// With these stages recomputed, R being directly before the backward.
  int64_t With(const std::vector<bool>& recomputed) const {
    int64_t held = 0, peak = 0;
    for (const Instruction& i : program_) {
      const CellBytes& own = cells_[static_cast<size_t>(i.stage)];
      const CellBytes& back = cells_[static_cast<size_t>(BackStage(i))];
      const bool again = HasBackward(i.op) && recomputed[static_cast<size_t>(BackStage(i))];
      if (again) peak = std::max(peak, held += back.activation - back.input);
      if (HasForward(i.op)) peak = std::max(peak, held += own.activation);
      if (HasForward(i.op) && recomputed[static_cast<size_t>(i.stage)]) {
        held -= own.activation - own.input;
      }
      if (HasBackward(i.op)) held -= back.activation - back.stash;
      if (HasWeight(i.op)) held -= back.stash;
    }
    return peak;
  }

 private:
  const Program& program_;
  const std::vector<CellBytes>& cells_;
};

/// The stages of a rank that its program has not chosen yet, cheapest first.
std::vector<int> OpenStages(const Program& program, const std::vector<bool>& chosen,
                            const CostModel& costs) {
  std::vector<int> stages;
  for (const Instruction& i : program) {
    if (HasForward(i.op) && !chosen[static_cast<size_t>(i.stage)]) stages.push_back(i.stage);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  std::stable_sort(stages.begin(), stages.end(), [&](int a, int b) {
    return costs.stage(a).recompute() < costs.stage(b).recompute();
  });
  return stages;
}

/// Adds to `chosen` the cheapest of all subsets with which the rank fits; false if none does.
bool AddCheapest(const RankPeak& peak, const std::vector<int>& stages, const CostModel& costs,
                 int64_t limit, std::vector<bool>* chosen) {
  std::vector<std::pair<Time, unsigned>> subsets;  // time of R for a micro-batch, members
  for (unsigned members = 0; members < 1U << stages.size(); ++members) {
    Time time = 0;
    for (size_t k = 0; k < stages.size(); ++k) {
      if ((members >> k & 1) != 0) time += costs.stage(stages[k]).recompute();
    }
    subsets.push_back({time, members});
  }
  std::sort(subsets.begin(), subsets.end());
  for (const auto& [time, members] : subsets) {
    std::vector<bool> with = *chosen;
    for (size_t k = 0; k < stages.size(); ++k) {
      if ((members >> k & 1) != 0) with[static_cast<size_t>(stages[k])] = true;
    }
    if (peak.With(with) > limit) continue;
    *chosen = std::move(with);
    return true;
  }
  return false;
}

/// Adds one stage after the other, each the one that saves most for its time, until the rank fits.
void AddGreedily(const RankPeak& peak, std::vector<int> stages, const CostModel& costs,
                 int64_t limit, std::vector<bool>* chosen) {
  int64_t held = peak.With(*chosen);
  while (held > limit && !stages.empty()) {
    size_t best = 0;
    double most = -1;
    int64_t left = held;
    for (size_t k = 0; k < stages.size(); ++k) {
      std::vector<bool> with = *chosen;
      with[static_cast<size_t>(stages[k])] = true;
      const int64_t now = peak.With(with);
      const double gain = static_cast<double>(held - now) /
                          static_cast<double>(1 + costs.stage(stages[k]).recompute());
      if (gain <= most) continue;
      most = gain;
      best = k;
      left = now;
    }
    (*chosen)[static_cast<size_t>(stages[best])] = true;
    stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(best));
    held = left;
  }
}

// R needs nothing but the stage input, so it can run long before its backward: in a bubble, if
// there is memory for what it makes.

/// Moves the R of one rank into idle time before them. What stands in between starts when it did,
/// so nothing is ever later for it.
class Hoister {
 public:
  Hoister(const Plan& plan, const RecomputedCells& recomputed, size_t rank,
          const std::vector<Span>& spans, const CostModel& costs,
          const std::vector<CellBytes>& cells, int64_t most)
      : program_(plan.programs[rank]), spans_(spans), costs_(costs), cells_(cells), most_(most) {
    int64_t held = 0;
    for (size_t at = 0; at < program_.size(); ++at) {
      const Instruction& i = program_[at];
      idle_.push_back(spans[at].start - (at > 0 ? spans[at - 1].end : 0));
      const CellBytes& back = cells[static_cast<size_t>(BackStage(i))];
      if (HasForward(i.op)) held += cells[static_cast<size_t>(i.stage)].activation;
      if (i.op == Op::R) held += Dropped(i);
      held_.push_back(held);
      if (HasForward(i.op) && recomputed.Has(i.stage, i.microbatch)) held -= Dropped(i);
      if (HasBackward(i.op)) held -= back.activation - back.stash;
      if (HasWeight(i.op)) held -= back.stash;
    }
  }

  Program Run() {
    std::vector<std::vector<size_t>> moved(program_.size());  // what comes before each instruction
    std::vector<bool> gone(program_.size(), false);
    for (size_t at = 0; at < program_.size(); ++at) {
      if (program_[at].op != Op::R || !HoldsUp(at)) continue;
      const size_t to = Place(at);
      if (to == at) continue;
      idle_[to] -= costs_.Duration(program_[at]);
      for (size_t k = to; k < at; ++k) held_[k] += Dropped(program_[at]);
      moved[to].push_back(at);
      gone[at] = true;
    }
    Program program;
    program.reserve(program_.size());
    for (size_t at = 0; at < program_.size(); ++at) {
      for (const size_t earlier : moved[at]) program.push_back(program_[earlier]);
      if (!gone[at]) program.push_back(program_[at]);
    }
    return program;
  }

 private:
  /// What the chunk of a recomputed forward, or of an R, lets go in between.
  int64_t Dropped(const Instruction& i) const {
    const CellBytes& bytes = cells_[static_cast<size_t>(i.stage)];
    return bytes.activation - bytes.input;
  }

  /// True if what follows R begins no earlier because of it.
  bool HoldsUp(size_t at) const {
    return at + 1 < program_.size() && spans_[at + 1].start == spans_[at].end;
  }

  /// The latest earlier place with room for R in time and memory; its own if there is none.
  size_t Place(size_t at) const {
    constexpr size_t kFarthest = 64;
    const Instruction& recompute = program_[at];
    const Time duration = costs_.Duration(recompute);
    for (size_t to = at; to-- > 0 && at - to <= kFarthest;) {
      const Instruction& before = program_[to];
      const bool own = HasForward(before.op) && before.stage == recompute.stage &&
                       before.microbatch == recompute.microbatch;
      if (own || held_[to] > most_ - Dropped(recompute)) break;
      if (idle_[to] >= duration && duration > 0) return to;
    }
    return at;
  }

  const Program& program_;
  const std::vector<Span>& spans_;
  const CostModel& costs_;
  const std::vector<CellBytes>& cells_;  // by stage
  const int64_t most_;
  std::vector<Time> idle_;     // before each instruction
  std::vector<int64_t> held_;  // during each
};

/// True where the costs say what R of a part takes and leaves.
bool KnowsParts(const CostModel& costs) {
  return costs.components() && costs.memory && !costs.memory->values.empty();
}

/// The order with every W right behind its B, as one.
Plan Whole(Plan order) {
  for (Program& program : order.programs) {
    std::erase_if(program, [](const Instruction& i) { return i.op == Op::W; });
    for (Instruction& i : program) {
      if (i.op == Op::B) i.op = Op::BW;
    }
  }
  return order;
}

/// Different compute orders of one spec.
struct Orders {
  std::vector<Plan> plans;
  std::optional<Error> why_not;  ///< of the first that there is none of

  void Try(const Schedule& schedule, const Spec& spec, const SearchControl& control,
           bool whole = false) {
    try {
      Plan plan = GenerateOrder(schedule, spec, control);
      if (whole) plan = Whole(std::move(plan));
      const auto same = [&](const Plan& other) {
        return other.routes == plan.routes && other.programs == plan.programs;
      };
      if (std::none_of(plans.begin(), plans.end(), same)) plans.push_back(std::move(plan));
    } catch (const Error& error) {
      if (!why_not) why_not = error;
    }
  }
};

/// The spec of an order whose backwards have R in them. With all stages recomputed a chunk under
/// way holds its input or, behind B, its stash, and beside these there are at most as many whole
/// activations as chunks run at one time. With `whole` W is in the backward too (Whole): no stash.
Spec Fused(const Schedule& schedule, const Spec& spec, bool whole) {
  Spec fused = spec;
  fused.recompute = {};
  // Components have no R in their backward.
  fused.search.components = false;
  const std::vector<int>& stages = spec.recompute.stages;
  const bool all = spec.recompute.choice != Recompute::Choice::kStages;
  bool pairs = false;
  if (!all && !stages.empty() && spec.costs.stages.size() == 1) {
    fused.costs.stages.resize(static_cast<size_t>(schedule.stages(spec)), spec.costs.stages[0]);
  }
  for (size_t s = 0; s < fused.costs.stages.size(); ++s) {
    StageCost& cost = fused.costs.stages[s];
    pairs = pairs || cost.fb < cost.f + cost.bw;
    if (!all && !std::binary_search(stages.begin(), stages.end(), static_cast<int>(s))) continue;
    Instruction again = CellOp(Op::R, static_cast<int>(s), -1);
    again.part = spec.recompute.part;
    const Time r = spec.costs.Duration(again);
    cost.b += r;
    cost.bw += r;
    cost.fb += r;
    if (!whole) continue;
    cost.b = cost.bw;
    cost.w = 0;
  }
  if (!all || !spec.memory_limit) return fused;
  MemoryCost& memory = *fused.costs.memory;
  const auto held = [&](const CellBytes& bytes) {
    return std::max({bytes.input, whole ? 0 : bytes.stash, int64_t{1}});
  };
  int64_t beside = 0;
  memory.activation_bytes = std::numeric_limits<int64_t>::max();
  const bool alike = memory.activation_of.empty();
  for (int s = 0; s < (alike ? 1 : schedule.stages(spec)); ++s) {
    const CellBytes bytes = BytesOfCell(spec.costs, s, true, spec.recompute.part);
    beside = std::max(beside, bytes.activation - held(bytes));
    memory.activation_bytes = std::min(memory.activation_bytes, held(bytes));
    if (!alike) memory.activation_of[static_cast<size_t>(s)] = held(bytes);
  }
  if (whole) {
    memory.w_stash_bytes = memory.activation_bytes;
    memory.stash_of = memory.activation_of;
  }
  memory.input_bytes = -1;
  fused.memory_limit = std::max<int64_t>(1, *spec.memory_limit - (pairs ? 2 : 1) * beside);
  return fused;
}

/// True where a chunk that waits for W may hold more than one that waits for R.
bool StashIsMore(const Schedule& schedule, const Spec& spec) {
  if (!spec.memory_limit || spec.recompute.choice == Recompute::Choice::kStages) return false;
  for (int s = 0; s < schedule.stages(spec); ++s) {
    const CellBytes bytes = BytesOfCell(spec.costs, s, true, spec.recompute.part);
    if (bytes.stash > bytes.input) return true;
  }
  return false;
}

}  // namespace

std::vector<int> StagesToFit(const Plan& plan, const CostModel& costs, int64_t limit,
                             RecomputePart part) {
  const std::vector<CellBytes> cells = BytesOfCells(
      costs, plan.stages, std::vector<RecomputePart>(static_cast<size_t>(plan.stages), part));
  std::vector<bool> chosen(static_cast<size_t>(plan.stages), false);
  for (const Program& program : plan.programs) {
    const RankPeak peak(program, cells);
    if (peak.With(chosen) <= limit) continue;
    const std::vector<int> stages = OpenStages(program, chosen, costs);
    if (stages.size() <= kMostTried && AddCheapest(peak, stages, costs, limit, &chosen)) continue;
    AddGreedily(peak, stages, costs, limit, &chosen);
  }
  std::vector<int> stages;
  for (int s = 0; s < plan.stages; ++s) {
    if (chosen[static_cast<size_t>(s)]) stages.push_back(s);
  }
  return stages;
}

Plan HoistRecompute(Plan plan, const CostModel& costs, std::optional<int64_t> limit) {
  constexpr int kRounds = 4;
  Simulation now = Simulate(plan, costs);
  // Which chunks are recomputed does not change by moving R.
  const RecomputedCells recomputed(plan);
  const std::vector<CellBytes> cells = BytesOfCells(costs, plan.stages, recomputed.parts());
  int64_t most = limit.value_or(0);
  if (!limit) {
    for (const RankFigures& rank : now.ranks) most = std::max(most, rank.peak_bytes);
  }
  for (int round = 0; round < kRounds; ++round) {
    Plan next = plan;
    for (size_t r = 0; r < next.programs.size(); ++r) {
      next.programs[r] =
          Hoister(plan, recomputed, r, now.timeline.ranks[r], costs, cells, most).Run();
    }
    if (next.programs == plan.programs) break;
    Simulation then = Simulate(next, costs);
    if (then.makespan >= now.makespan) break;
    plan = std::move(next);
    now = std::move(then);
  }
  return plan;
}

std::vector<int> StagesToRecompute(const Plan& order, const Spec& spec) {
  const Recompute& recompute = spec.recompute;
  if (recompute.choice == Recompute::Choice::kAuto) {
    return spec.memory_limit ? StagesToFit(order, spec.costs, *spec.memory_limit, recompute.part)
                             : std::vector<int>();
  }
  std::vector<int> stages = recompute.stages;
  if (recompute.choice == Recompute::Choice::kFull) {
    stages.resize(static_cast<size_t>(order.stages));
    std::iota(stages.begin(), stages.end(), 0);
  }
  if (!stages.empty() && stages.back() >= order.stages) {
    throw Error("`recompute`: there is no stage " + std::to_string(stages.back()) + ", " +
                spec.schedule + " makes " + std::to_string(order.stages) + " stages (0.." +
                std::to_string(order.stages - 1) + ")");
  }
  return stages;
}

Plan InsertRecompute(Plan plan, const std::vector<int>& stages, RecomputePart part) {
  for (Program& program : plan.programs) {
    Program with;
    with.reserve(program.size() + program.size() / 2);
    for (const Instruction& i : program) {
      if (HasBackward(i.op) && std::binary_search(stages.begin(), stages.end(), BackStage(i))) {
        with.push_back(CellOp(Op::R, BackStage(i), BackMicrobatch(i)));
        with.back().part = part;
      }
      with.push_back(i);
    }
    program = std::move(with);
  }
  return plan;
}

void CheckRecomputeLimit(const Spec& spec) {
  if (spec.recompute.part != RecomputePart::kFull && !spec.costs.components()) {
    throw Error("`recompute` " + std::string(Name(spec.recompute.part)) +
                ": the costs do not say how long that part of a stage takes; give components "
                "(\"moe\")");
  }
  if (!spec.memory_limit) return;
  const CostModel& costs = spec.costs;
  if (!MemoryLimit(costs).bytes()) {
    throw Error(
        "`recompute` with `memory_limit`: the costs give no bytes, and what a recomputed cell "
        "holds is no activation; give \"memory\": {\"activation_bytes\": .., \"input_bytes\": ..}");
  }
  BytesOfCell(costs, 0, true, spec.recompute.part);
}

Plan RecomputeOrder(const Plan& order, const Spec& spec, Room room) {
  const std::vector<int> stages = StagesToRecompute(order, spec);
  std::optional<int64_t> most = spec.memory_limit;
  if (!most && room == Room::kAny) most = std::numeric_limits<int64_t>::max();
  return HoistRecompute(InsertRecompute(order, stages, spec.recompute.part), spec.costs, most);
}

Plan GenerateOrder(const Schedule& schedule, const Spec& spec, const SearchControl& control) {
  const std::string name(schedule.name);
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(name + " " + why_not);
  const int stages = schedule.stages(spec);
  if (stages > kMaxStages || int64_t{stages} * spec.microbatches > kMaxCells) {
    throw Error(name + " would make " + std::to_string(stages) + " stages x " +
                std::to_string(spec.microbatches) + " micro-batches, more than the limit of " +
                std::to_string(kMaxStages) + " stages and " + std::to_string(kMaxCells) +
                " cells; use fewer `ranks` or `microbatches`");
  }
  CheckCosts(spec.costs, stages, spec.microbatches);
  return schedule.search != nullptr ? schedule.search(spec, control) : schedule.generate(spec);
}

Plan GenerateRecomputed(const Schedule& schedule, const Spec& spec, Room room,
                        const SearchControl& control, std::optional<Plan>* full) {
  using Choice = Recompute::Choice;
  const Recompute& recompute = spec.recompute;
  CF_ASSERT(recompute.choice != Choice::kNone);
  CheckRecomputeLimit(spec);
  const MemoryLimit limit(spec.costs, spec.memory_limit);
  Spec plain = spec;
  plain.recompute = {};
  Orders orders;
  orders.Try(schedule, plain, control);
  // A generator that heeds costs and memory does without recompute what it need not do with it.
  plain.memory_limit.reset();
  if (spec.memory_limit) orders.Try(schedule, plain, control);
  if (full == nullptr && orders.plans.size() == 1 && recompute.choice == Choice::kAuto &&
      limit.Fits(Simulate(orders.plans[0], spec.costs))) {
    return std::move(orders.plans[0]);
  }
  orders.Try(schedule, Fused(schedule, spec, false), control);
  // Published orders do not search for what fits.
  if (schedule.search != nullptr && StashIsMore(schedule, spec)) {
    orders.Try(schedule, Fused(schedule, spec, true), control, true);
  }
  if (orders.plans.empty()) throw *orders.why_not;
  const CostModel& costs = spec.costs;
  /// The shortest that fits, else the shortest.
  struct Best {
    std::optional<Plan> plan;
    bool fits = false;
    Time least = 0;
  };
  Best best, best_full;
  const auto offer = [&](const Plan& order, const Spec& as, std::initializer_list<Best*> to) {
    const Plan plan = RecomputeOrder(order, as, room);
    const Simulation simulation = Simulate(plan, costs);
    const bool fits = limit.Fits(simulation);
    const Time step = fits && LongerThanOrder(costs, spec.search)
                          ? StepTime(plan, costs, spec.memory_limit, spec.search)
                          : simulation.makespan;
    for (Best* of : to) {
      if (of->plan && std::pair(!of->fits, of->least) <= std::pair(!fits, step)) continue;
      *of = {plan, fits, step};
    }
  };
  const bool freely = recompute.choice == Choice::kAuto && spec.memory_limit.has_value();
  for (const Plan& order : orders.plans) {
    offer(order, spec, {&best});
    if (!freely) continue;
    for (const RecomputePart part : kParts) {
      if (part != RecomputePart::kFull && !KnowsParts(costs)) continue;
      Spec as = spec;
      as.recompute.part = part;
      if (part != RecomputePart::kFull) offer(order, as, {&best});
      // An order for backwards with R may be better off with all of them.
      as.recompute.choice = Choice::kFull;
      if (full != nullptr && part == recompute.part) {
        offer(order, as, {&best, &best_full});
      } else {
        offer(order, as, {&best});
      }
    }
  }
  // An order that was searched for other costs is one for these.
  for (Best* of : {&best, &best_full}) {
    if (of->plan && of->plan->costs) of->plan->costs = costs;
  }
  if (full != nullptr) *full = std::move(best_full.plan);
  return std::move(*best.plan);
}

}  // namespace contraflow
