// Recompute (Chen et al., arXiv 1604.06174) of whole chunks, as Megatron's "full" granularity has
// it, or of their first layers, as its method "block": a chunk keeps its stage input and what the
// other layers made, and the forward is run again before its backward. That trades an activation of
// every micro-batch under way for one input, and f for every micro-batch.

#include "schedules/recompute/recompute.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

// R needs nothing but the stage input, so it can run long before its backward: in a bubble, if
// there is memory for what it makes.

/// Moves the R of one rank into idle time before them. The instructions in between start when they
/// did, so nothing is ever later for it.
class Hoister {
 public:
  Hoister(const Plan& plan, const RecomputedCells& recomputed, size_t rank,
          const std::vector<Span>& spans, const CostModel& costs,
          const std::vector<CellBytes>& cells, int64_t most)
      : program_(plan.programs[rank]), spans_(spans), costs_(costs), cells_(cells), most_(most) {
    RankMemory memory;
    for (size_t at = 0; at < program_.size(); ++at) {
      const Instruction& i = program_[at];
      const CellBytes& own = cells[static_cast<size_t>(i.stage)];
      idle_.push_back(spans[at].start - (at > 0 ? spans[at - 1].end : 0));
      memory.Begin(i.op, own);
      held_.push_back(memory.held());
      memory.End(i.op, own, cells[static_cast<size_t>(BackStage(i))],
                 recomputed.Has(i.stage, i.microbatch));
    }
  }

  Program Run() {
    std::vector<std::vector<size_t>> moved(program_.size());  // the instruction before each
    std::vector<bool> gone(program_.size(), false);
    for (size_t at = 0; at < program_.size(); ++at) {
      if (program_[at].op != Op::R || !HoldsUp(at)) continue;
      const size_t to = Place(at);
      if (to == at) continue;
      idle_[to] -= costs_.Duration(program_[at]);
      for (size_t k = to; k < at; ++k) held_[k] += TakenBy(program_[at]);
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
  int64_t TakenBy(const Instruction& r) const {
    return Taken(r.op, cells_[static_cast<size_t>(r.stage)]);
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
      if (own || held_[to] > most_ - TakenBy(recompute)) break;
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

/// False for Megatron-LM, whose backward begins with the forward that runs again.
bool MovesRecompute(const Spec& spec) { return spec.target != Target::kMegatron; }

/// Different compute orders of one spec.
struct Orders {
  std::vector<Plan> plans;
  std::optional<Error> why_not;  ///< of the first that there is none of

  void Try(const OrderMaker& make, const Spec& spec) {
    try {
      Plan plan = make(spec);
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
/// way holds its input or, after B, its stash, and in addition to these there are at most as many
/// whole activations as chunks run at one time.
Spec Fused(const Spec& spec, int stages) {
  Spec fused = spec;
  fused.recompute = {};
  // Components have no R in their backward.
  fused.search.components.reset();
  const std::vector<RecomputedStage> chosen = MostRecomputed(stages, spec);
  const bool all = spec.recompute.choice != Recompute::Choice::kStages;
  bool pairs = false;
  if (!all && !chosen.empty() && spec.costs.stages.size() == 1) {
    fused.costs.stages.resize(static_cast<size_t>(stages), spec.costs.stages[0]);
  }
  auto next = chosen.begin();
  for (size_t s = 0; s < fused.costs.stages.size(); ++s) {
    StageCost& cost = fused.costs.stages[s];
    pairs = pairs || cost.fb < cost.f + cost.bw;
    if (next == chosen.end() || std::cmp_not_equal(next->stage, s)) continue;
    const Time r = spec.costs.Duration(RecomputeOp(next->stage, -1, next->extent));
    ++next;
    cost.b += r;
    cost.bw += r;
    cost.fb += r;
  }
  if (!all || !spec.memory_limit) return fused;
  MemoryCost& memory = *fused.costs.memory;
  const auto held = [&](const CellBytes& bytes) {
    return std::max({bytes.input, bytes.stash, int64_t{1}});
  };
  int64_t extra = 0;
  memory.activation_bytes = std::numeric_limits<int64_t>::max();
  const bool alike = memory.activation_of.empty();
  next = chosen.begin();
  for (int s = 0; s < (alike ? 1 : stages); ++s) {
    const bool again = next != chosen.end() && next->stage == s;
    const CellBytes bytes =
        BytesOfCell(spec.costs, s, again, again ? next->extent : RecomputeExtent());
    if (again) ++next;
    extra = std::max(extra, bytes.activation - held(bytes));
    memory.activation_bytes = std::min(memory.activation_bytes, held(bytes));
    if (!alike) memory.activation_of[static_cast<size_t>(s)] = held(bytes);
  }
  memory.input_bytes = -1;
  fused.memory_limit = std::max<int64_t>(1, *spec.memory_limit - (pairs ? 2 : 1) * extra);
  return fused;
}

/// The shortest that fits, else of those that hold least.
struct Best {
  std::optional<Plan> plan;
  std::pair<int64_t, Time> worth;  ///< bytes of the fullest rank if they do not fit, step
  Time order = 0;                  ///< makespan of the compute order

  bool BetterThan(const std::pair<int64_t, Time>& other) const { return plan && worth <= other; }
};

/// Work of an order with R, in evaluations of a plain order.
constexpr int64_t kOrdersOfVariant = 16;

/// Plans of an order with different stages recomputed, each made once.
class Variants {
 public:
  Variants(const Spec& spec, Room room, SearchWork* work)
      : spec_(spec), room_(room), work_(work), limit_(spec.costs, spec.memory_limit) {}

  /// Sets the order of the plans that follow.
  void Of(const Plan& order) {
    order_ = &order;
    made_.clear();
  }

  /// Offers the plan with the recompute of `as` to each of some.
  void Offer(const Spec& as, Grain grain, std::initializer_list<Best*> to) {
    if (work_ != nullptr && work_->spent() && (*to.begin())->plan) return;
    std::vector<RecomputedStage> stages = StagesToRecompute(*order_, as, grain);
    auto known = std::ranges::find(made_, stages, &Made::stages);
    if (known == made_.end()) {
      std::optional<Best> made = Make(stages, to);
      known = made_.insert(made_.end(), {std::move(stages), std::move(made)});
    }
    if (!known->best) return;
    for (Best* of : to) {
      if (!of->BetterThan(known->best->worth)) *of = *known->best;
    }
  }

 private:
  struct Made {
    std::vector<RecomputedStage> stages;
    std::optional<Best> best;  // none: longer than another
  };

  std::optional<Best> Make(const std::vector<RecomputedStage>& stages,
                           std::initializer_list<Best*> to) const {
    const CostModel& costs = spec_.costs;
    Plan plan = RecomputeStages(*order_, stages);
    if (work_ != nullptr) work_->Spend(kOrdersOfVariant * InstructionCount(plan));
    // A step takes no less than its order, but for components.
    const bool components = ByComponents(costs, spec_.search);
    const auto longer = [&](Time time) {
      return std::ranges::all_of(to, [&](const Best* of) {
        if (!of->BetterThan({0, std::numeric_limits<Time>::max()})) return false;
        return components ? MuchLonger(time, of->order) : of->worth.second <= time;
      });
    };
    if (longer(BusyTime(plan))) return std::nullopt;
    Simulation run = Simulate(plan, costs, Keep::kFigures);
    if (limit_.Fits(run)) {
      std::optional<int64_t> most = spec_.memory_limit;
      if (!most && room_ == Room::kAny) most = std::numeric_limits<int64_t>::max();
      if (MovesRecompute(spec_)) {
        plan = HoistRecompute(std::move(plan), costs, most);
        run = Simulate(plan, costs, Keep::kFigures);
      }
      if (longer(run.makespan)) return std::nullopt;
      const Time step = StepTime(plan, spec_, run.makespan, work_);
      return Best{std::move(plan), {0, step}, run.makespan};
    }
    int64_t held = 0;
    for (const RankFigures& rank : run.ranks) held = std::max(held, limit_.Peak(rank));
    return Best{std::move(plan), {held, run.makespan}, run.makespan};
  }

  /// Compute time of the busiest rank.
  Time BusyTime(const Plan& plan) const {
    Time busiest = 0;
    for (const Program& program : plan.programs) {
      Time busy = 0;
      for (const Instruction& i : program) busy += spec_.costs.Duration(i);
      busiest = std::max(busiest, busy);
    }
    return busiest;
  }

  const Spec& spec_;
  const Room room_;
  SearchWork* const work_;
  const MemoryLimit limit_;
  const Plan* order_ = nullptr;
  std::vector<Made> made_;
};

}  // namespace

Plan HoistRecompute(Plan plan, const CostModel& costs, std::optional<int64_t> limit) {
  constexpr int kRounds = 4;
  Simulation now = Simulate(plan, costs);
  // Which chunks are recomputed does not change by moving R.
  const RecomputedCells recomputed(plan);
  const std::vector<CellBytes> cells = BytesOfCells(costs, recomputed, plan.stages);
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

Plan RecomputeStages(Plan plan, const std::vector<RecomputedStage>& stages) {
  std::vector<std::optional<RecomputeExtent>> extents(static_cast<size_t>(plan.stages));
  for (const RecomputedStage& chosen : stages) {
    extents[static_cast<size_t>(chosen.stage)] = chosen.extent;
  }
  for (Program& program : plan.programs) {
    Program with;
    with.reserve(program.size() + program.size() / 2);
    for (const Instruction& i : program) {
      if (HasBackward(i.op)) {
        const int s = BackStage(i);
        const std::optional<RecomputeExtent>& extent = extents[static_cast<size_t>(s)];
        if (extent) with.push_back(RecomputeOp(s, BackMicrobatch(i), *extent));
      }
      with.push_back(i);
    }
    program = std::move(with);
  }
  return plan;
}

Plan InsertRecompute(Plan plan, const std::vector<int>& stages, const RecomputeExtent& extent) {
  std::vector<RecomputedStage> chosen;
  for (const int stage : stages) chosen.push_back({stage, extent});
  return RecomputeStages(std::move(plan), chosen);
}

void CheckRecomputeLimit(const Spec& spec) {
  if (spec.recompute.part != RecomputePart::kFull && !spec.costs.components()) {
    throw Error("`recompute` " + std::string(Name(spec.recompute.part)) +
                ": `costs`: has no \"moe\", which says how long that part of a stage takes; give "
                "it, or `recompute` full or auto");
  }
  if (!spec.memory_limit) return;
  const CostModel& costs = spec.costs;
  if (!MemoryLimit(costs).bytes()) {
    throw Error(
        "`recompute` with `memory_limit`: the costs give no bytes, and what a recomputed cell "
        "holds is no activation; give " +
        MemoryKeys(costs, {"activation_bytes", "input_bytes"}));
  }
  BytesOfCell(costs, 0, true, spec.recompute.part);
}

bool KnowsLayers(const CostModel& costs) {
  const auto several = [](const auto& stage) { return stage.size() > 1; };
  const auto of_components = [](const MoeCost& moe) { return moe.layers_per_stage > 1; };
  return std::ranges::any_of(costs.shares, several) ||
         std::ranges::any_of(costs.stage_moe, of_components) ||
         (costs.moe && of_components(*costs.moe));
}

Plan RecomputeOrder(const Plan& order, const Spec& spec, Room room, Grain grain) {
  const std::vector<RecomputedStage> stages = StagesToRecompute(order, spec, grain);
  std::optional<int64_t> most = spec.memory_limit;
  if (!most && room == Room::kAny) most = std::numeric_limits<int64_t>::max();
  Plan plan = RecomputeStages(order, stages);
  return MovesRecompute(spec) ? HoistRecompute(std::move(plan), spec.costs, most) : plan;
}

Plan GenerateOrder(const Schedule& schedule, const Spec& spec) {
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
  return schedule.generate(spec);
}

Plan GenerateRecomputed(const Spec& spec, int stages, Room room, bool searched,
                        const OrderMaker& make, SearchWork* work,
                        RecomputeAlternatives* alternatives) {
  using Choice = Recompute::Choice;
  const Recompute& recompute = spec.recompute;
  CF_ASSERT(recompute.choice != Choice::kNone);
  CheckRecomputeLimit(spec);
  const MemoryLimit limit(spec.costs, spec.memory_limit);
  Spec plain = spec;
  plain.recompute = {};
  Orders orders;
  orders.Try(make, plain);
  // A generator that heeds costs and memory does without recompute what it need not do with it.
  plain.memory_limit.reset();
  if (spec.memory_limit) orders.Try(make, plain);
  if (alternatives == nullptr && orders.plans.size() == 1 && recompute.choice == Choice::kAuto &&
      limit.Fits(Simulate(orders.plans[0], spec.costs))) {
    return std::move(orders.plans[0]);
  }
  if (!searched) orders.Try(make, Fused(spec, stages));
  if (orders.plans.empty()) throw *orders.why_not;
  const CostModel& costs = spec.costs;
  Best best, best_full, best_layers;
  Variants variants(spec, room, work);
  const bool freely = recompute.choice == Choice::kAuto && spec.memory_limit.has_value();
  const bool layers = recompute.choice == Choice::kAuto && KnowsLayers(costs);
  Best* const of_layers = alternatives != nullptr && layers ? &best_layers : &best;
  for (const Plan& order : orders.plans) {
    variants.Of(order);
    // The one with fewer layers wins of two that are as long.
    if (layers) variants.Offer(spec, Grain::kLayers, {of_layers});
    variants.Offer(spec, Grain::kStages, {&best, of_layers});
    if (!freely) continue;
    for (const RecomputePart part : kParts) {
      if (part != RecomputePart::kFull && !costs.knows_parts()) continue;
      Spec as = spec;
      as.recompute.part = part;
      if (part != RecomputePart::kFull) {
        if (layers) variants.Offer(as, Grain::kLayers, {of_layers});
        variants.Offer(as, Grain::kStages, {&best, of_layers});
      }
      // An order for backwards with R may be better off with all of them.
      as.recompute.choice = Choice::kFull;
      Best* const of_full = alternatives != nullptr && part == recompute.part ? &best_full : &best;
      variants.Offer(as, Grain::kStages, {&best, of_layers, of_full});
    }
  }
  // An order that was searched for other costs is one for these.
  for (Best* of : {&best, &best_full, &best_layers}) {
    if (of->plan && of->plan->costs) of->plan->costs = costs;
  }
  if (alternatives != nullptr)
    *alternatives = {std::move(best_full.plan), std::move(best_layers.plan)};
  return std::move(*best.plan);
}

}  // namespace contraflow
