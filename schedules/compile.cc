#include "schedules/compile.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/partition/staged.h"
#include "schedules/partition/stages.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/memory_advice.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "schedules/search/candidates.h"
#include "schedules/search/repartition.h"
#include "schedules/target.h"

namespace contraflow {
namespace {

/// Chunks of a plan up to which an error is worth another one.
constexpr int64_t kMostCellsTried = 100'000;
/// Parts of a stage that a multiple counts: placements of up to 8 chunks divide it.
constexpr int kPartsOfStage = 840;

/// Returns the number of stages whose activations a limit of the spec counts where it is a number
/// without bytes: those of the model that costs describe, if the schedule makes its stages of them,
/// else those of the schedule.
int StagesOfLimit(const Spec& spec) {
  const auto listed = static_cast<int>(spec.costs.stages.size());
  if (!spec.costs.layers.empty()) return spec.ranks;
  if (spec.partition) return listed > 1 ? listed : spec.ranks;
  return FindSchedule(spec.schedule).stages(spec);
}

/// Suggests ways to meet the limit other than raising it.
std::string WaysToFit(const Spec& spec, const SearchControl& control) {
  std::string text;
  const int stages = FindSchedule(spec.schedule).stages(spec);
  const int64_t chunks = int64_t{spec.microbatches} * stages;
  if (!spec.recompute.everything() && chunks <= kMostCellsTried && FitsRecomputed(spec, control)) {
    text += ", give `recompute` auto";
  }
  Spec searched = spec;
  searched.schedule = kAuto.name;
  searched.chunks = 0;
  searched.search.placement = Placement::kAny;
  // The stages that are named are those of this schedule.
  const bool named = spec.recompute.choice == Recompute::Choice::kStages;
  const std::optional<int64_t> least =
      spec.costs.layers.empty() && !named ? LeastLimit(searched, spec.recompute) : std::nullopt;
  if (!least || spec.schedule == kAuto.name) return text + ", or take a schedule that holds less";
  // The plans that a target runs have been tried, if they are few.
  const bool few = spec.target == Target::kMegatron || spec.target == Target::kDualPipe;
  const std::string take = few ? "take auto without `for`" : "take auto";
  const int64_t own =
      CountsBytes(spec.costs) ? *least : ActivationsOf(*least, CostStages(searched), stages);
  if (own <= *spec.memory_limit) return text + ", or " + take + ", which fits";
  return text + ", or to " + FormatCount(*least) + " and " + take + ", which then fits";
}

/// `counted`: the stages whose activations the limit was given in (StagesOfLimit).
void CheckMemory(const Plan& plan, const CostModel& costs, const Spec& spec,
                 const MemoryLimit& limit, int counted, const SearchControl& control) {
  if (!limit.amount()) return;
  const Simulation simulation = Simulate(plan, costs, Keep::kFigures);
  if (limit.Fits(simulation)) return;
  const auto fullest =
      std::max_element(simulation.ranks.begin(), simulation.ranks.end(),
                       [&](const auto& a, const auto& b) { return limit.Peak(a) < limit.Peak(b); });
  const auto rank = static_cast<size_t>(fullest - simulation.ranks.begin());
  const std::string holds = FormatCount(limit.Peak(*fullest));
  std::string text = plan.schedule + " does not fit `memory_limit`: rank " + std::to_string(rank) +
                     " holds " + holds + limit.unit() + " during instruction " +
                     std::to_string(fullest->peak_index) + " of its compute order (" +
                     ToString(plan.programs[rank][static_cast<size_t>(fullest->peak_index)]) +
                     "), the limit is " + FormatCount(*limit.amount()) + limit.unit();
  if (limit.bytes()) text += " (" + Breakdown(MemoryOf(plan, costs)[rank]) + ")";
  std::string raise = "it to " + holds;
  if (!limit.bytes() && counted != plan.stages) {
    raise = "`memory_limit` to " +
            FormatCount((limit.Peak(*fullest) * counted + plan.stages - 1) / plan.stages);
    const auto times = [](int many, int few) { return std::to_string(many / few); };
    text += counted < plan.stages
                ? " of its stages, " + times(plan.stages, counted) + " for each of `memory_limit`"
                : " of its stages, one for " + times(counted, plan.stages) + " of `memory_limit`";
  }
  throw Error(text + "; raise " + raise + WaysToFit(spec, control));
}

/// Parameters and all else of each rank against its device.
void CheckDevice(const Plan& plan, const CostModel& costs, const Spec& spec) {
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (devices.empty()) return;
  const std::vector<MemoryFigures> ranks = MemoryOf(plan, costs);
  std::optional<size_t> fullest;
  for (size_t r = 0; r < devices.size(); ++r) {
    const int64_t excess = ranks[r].total() - devices[r];
    if (excess > 0 && (!fullest || excess > ranks[*fullest].total() - devices[*fullest]))
      fullest = r;
  }
  if (!fullest) return;
  throw Error(plan.schedule + " does not fit `device_memory`: rank " + std::to_string(*fullest) +
              " holds " + FormatCount(ranks[*fullest].total()) + " bytes, its device has " +
              FormatCount(devices[*fullest]) + " (" + Breakdown(ranks[*fullest]) + "); " +
              DeviceAdvice(spec, ranks[*fullest].fixed() <= devices[*fullest]));
}

}  // namespace

Spec WithStages(Spec spec) {
  CostModel& costs = spec.costs;
  if (!costs.layers.empty() || !spec.partition) return spec;
  const Schedule& schedule = FindSchedule(spec.schedule);
  using Kind = PartitionChoice::Kind;
  if (spec.partition->kind == Kind::kList) {
    throw Error(
        "`partition`: says how many layers each stage has, and these costs are of stages; give "
        "costs with \"layers\", or even");
  }
  if (&schedule == &kAuto) {
    // It takes Spec::chunks for its interleaved placement only.
    if (spec.chunks > 0 && costs.stages.size() == 1) {
      costs.stages.resize(static_cast<size_t>(spec.ranks), costs.stages.front());
      if (spec.ranks == 1) spec.chunks = 0;
    }
    return spec;
  }
  const auto listed = static_cast<int>(costs.stages.size());
  const int from = listed > 1 ? listed : spec.ranks, to = schedule.stages(spec);
  // Told in their own figures, not in those of parts.
  CheckStageCosts(costs);
  const std::string why_not = RejectRepartition(costs, from, to);
  if (!why_not.empty()) throw Error(spec.schedule + " " + why_not);
  costs = Repartition(costs, from, to);
  spec.partition.reset();
  return spec;
}

namespace {

/// The shortest of the few that the target runs; one that fits its devices first.
Plan CompileForTarget(const Spec& spec, const CompileOptions& options) {
  CompileOptions quiet = options;
  quiet.observer = {};
  const std::vector<Spec> specs = TargetSpecs(spec);
  const Spec* best = nullptr;
  std::optional<Plan> plan;
  std::string why_not;  // of each schedule the first reason
  std::string_view asked;
  Time shortest = 0;
  for (const bool any_device : {false, true}) {
    if (plan || any_device > options.any_device) break;
    quiet.any_device = any_device;
    why_not.clear();
    asked = {};
    for (const Spec& each : specs) {
      try {
        Plan made = Compile(each, quiet);
        const Time step = Simulate(made, *made.costs).makespan;
        if (plan && step >= shortest) continue;
        shortest = step;
        best = &each;
        plan = std::move(made);
      } catch (const Error& error) {
        if (each.schedule != asked)
          why_not += (why_not.empty() ? "" : "; ") + std::string(error.what());
        asked = each.schedule;
      }
    }
  }
  if (!plan) throw Error(why_not);
  if (!options.observer) return std::move(*plan);
  quiet.observer = options.observer;
  return Compile(*best, quiet);
}

/// Throws Error where a part of each layer is to run again and the costs, of layers, cannot say
/// what that holds at this level.
void CheckPart(const Spec& spec, Level level) {
  if (spec.recompute.part == RecomputePart::kFull || spec.costs.layers.empty()) return;
  const std::string what = "`recompute` " + std::string(Name(spec.recompute.part)) + ": ";
  if (!KnowParts(spec.costs)) {
    throw Error(what + "`costs`: /layers: " +
                (HasComponents(spec.costs.layers)
                     ? "no layer has \"values\", which say what its parts hold; give them"
                     : "no layer has \"moe\" or \"dense\", which say what its parts take; give "
                       "them, with \"values\"") +
                ", or `recompute` full, auto or layers=N");
  }
  if (level < Level::kBuffer) return;
  throw Error(what +
              "`level` buffer has no values of a part that runs again; give `level` "
              "component, or `recompute` full");
}

/// Makes the figures in the provenance of a plan those of its level. The search took cells as
/// blocks; components may overlap more than its bound allows for.
void SetFigures(const CostModel& costs, std::optional<int64_t> limit, Plan* plan) {
  Provenance& provenance = *plan->provenance;
  const Simulation simulation = Simulate(*plan, costs, Keep::kFigures);
  provenance.makespan = simulation.makespan;
  if (plan->layers == 0) return;
  const bool fits = MemoryLimit(costs, limit).Fits(simulation);
  provenance.bound = ProveBound(*plan, costs, fits ? limit : std::nullopt).value;
}

}  // namespace

Plan Compile(Spec spec, const CompileOptions& options) {
  FindSchedule(spec.schedule);
  CheckSpec(spec);
  if (const std::string why = RejectTarget(spec); !why.empty()) {
    throw Error(spec.schedule + " " + why);
  }
  if (HasFewSpecs(spec)) return CompileForTarget(spec, options);
  if (spec.target == Target::kTorch && spec.search.placement == Placement::kAny) {
    spec.search.placement = Placement::kSingle;
  }
  const Overlap overlap = options.overlap.value_or(spec.costs.derived.value_or(Overlap::kAll));
  if (spec.costs.moe && spec.costs.stages.empty()) DeriveChunkCosts(&spec.costs, overlap);
  const int counted = StagesOfLimit(spec);
  spec = WithStages(std::move(spec));
  if (!spec.costs.layers.empty()) spec.costs.derived = overlap;
  CheckPart(spec, options.level);
  const bool components = spec.costs.components() || HasComponents(spec.costs.layers);
  if (options.level == Level::kComponent && !components) RefuseComponents();
  // Without bytes of their values, alike of all, layers are opaque in memory.
  const bool values = spec.costs.memory && !spec.costs.memory->values.empty();
  if (options.level == Level::kBuffer && !values) {
    for (LayerCost& layer : spec.costs.layers) {
      if (layer.moe) layer.moe->values.clear();
    }
  }
  const bool layers =
      HasComponents(spec.costs.layers) && (options.level == Level::kComponent || values);
  if (options.level >= Level::kComponent && (spec.costs.moe || layers)) {
    spec.search.components = overlap;
  }
  // A chunk has one slot for all that it holds, and no values of what runs again alone.
  const bool opaque = options.level == Level::kBuffer && !spec.search.components;
  if (opaque && spec.recompute.choice == Recompute::Choice::kAuto) {
    spec.recompute.whole_stages = true;
    spec.costs.shares.clear();
  }
  Plan plan = GeneratePlan(spec, options.control);
  if (opaque) {
    const RecomputedCells recomputed(plan);
    if (recomputed.in_layers() || recomputed.in_parts()) {
      throw Error(
          "`recompute`: at `level` buffer a chunk has no values of some of its layers; give "
          "`level` comm, or `recompute` full");
    }
  }
  // A searched plan may have other stages than the costs: then it brings its own, and its limit.
  CostModel costs = AtReplicas(plan.costs ? *plan.costs : spec.costs, plan);
  // The stages were made from the layers of a model, so the file does not need the layers.
  if (!costs.partition.empty()) LeaveOutUnused(plan, spec.search.components.has_value(), &costs);
  // On a device its limit is what the fullest rank leaves; others may hold more.
  const bool searched = plan.provenance && plan.provenance->memory_limit && DevicesOf(spec).empty();
  const std::optional<int64_t> limit = searched ? plan.provenance->memory_limit : spec.memory_limit;
  CheckMemory(plan, costs, spec, MemoryLimit(costs, limit), counted, options.control);
  RequireBytes(spec, costs);
  if (!options.any_device) CheckDevice(plan, costs, spec);
  const LowerOptions lower = {.target = options.level,
                              .overlap = overlap,
                              .limits = LimitsOfRanks(plan, costs, spec, limit)};
  const std::string name = plan.schedule;
  try {
    plan = Lower(std::move(plan), costs, lower, options.observer);
    if (plan.provenance) SetFigures(costs, limit, &plan);
    return plan;
  } catch (const UnsoundOrder& error) {
    // The order is our own.
    throw InternalError("internal error: the order of " + name + ": " + error.what() +
                        "; this is a bug in contraflow, please report it");
  }
}

std::optional<Plan> LighterPlan(const Spec& spec, const Plan& plan, CompileOptions options) {
  const bool chosen = ChoiceOf(spec).kind == PartitionChoice::Kind::kAuto;
  if (!chosen || !CountsBytes(spec.costs) || spec.costs.layers.empty()) return std::nullopt;
  if (spec.schedule == kAuto.name) return std::nullopt;
  Spec lighter = spec;
  lighter.partition = PartitionChoice{.layers = plan.costs->partition, .longer = 1.05};
  options.observer = {};
  Plan other = Compile(lighter, options);
  if (FullestRank(other) * 10 >= FullestRank(plan) * 9) return std::nullopt;
  return other;
}

int64_t FullestRank(const Plan& plan) { return std::ranges::max(TotalOfRanks(plan, *plan.costs)); }

namespace {

/// True if 1F1B's fullest rank is not simply the first: stages hold unlike bytes.
bool HoldUnlike(const CostModel& costs) {
  const bool alike = costs.layers.empty() && (!costs.memory || costs.memory->activation_of.empty());
  return CountsBytes(costs) && !alike;
}

}  // namespace

int64_t MemoryLimitOf(const Spec& spec, const std::string& text, double held_by_1f1b) {
  const Schedule& schedule = FindSchedule(spec.schedule);
  CheckSpec(spec);
  const Spec staged = WithStages(spec);
  const int stages = schedule.stages(staged), counted = StagesOfLimit(spec);
  const int64_t limit = ParseMemoryLimit(text, staged, stages);
  if (text.back() == 'x' && HoldUnlike(spec.costs)) {
    const double held = held_by_1f1b > 0 ? held_by_1f1b : HeldBy1F1B(spec);
    return std::max<int64_t>(1, static_cast<int64_t>(std::floor(ParseMultiple(text) * held)));
  }
  if (CountsBytes(spec.costs) || text.back() == 'x') return limit;
  const int64_t own = ActivationsOf(limit, counted, stages);
  if (own >= 1) return own;
  throw Error("`memory_limit`: has no room for one activation of a stage of " + spec.schedule +
              ", which is " + std::to_string(counted / stages) + " of those that the costs list; " +
              "raise it to " + std::to_string(counted / stages));
}

void SetMemoryLimit(const std::string& text, double held_by_1f1b, Spec* spec) {
  if (!text.ends_with('x') || CountsBytes(spec->costs) || spec->schedule != kAuto.name) {
    spec->memory_limit = MemoryLimitOf(*spec, text, held_by_1f1b);
    return;
  }
  CheckSpec(*spec);
  // Each placement rounds once, to activations of its own stages.
  spec->limit_stages = kPartsOfStage * kAuto.stages(WithStages(*spec));
  spec->memory_limit = ParseMemoryLimit(text, *spec, spec->limit_stages);
}

double HeldBy1F1B(Spec spec, MadePlans* made) {
  const CostModel& costs = spec.costs;
  const bool bytes = CountsBytes(costs);
  const auto listed = static_cast<int>(costs.stages.size());
  const auto all =
      static_cast<double>(ParseMemoryLimit("1x", spec, bytes && listed > 1 ? listed : spec.ranks));
  const double average = all * std::min(1.0, static_cast<double>(spec.microbatches) / spec.ranks);
  if (!HoldUnlike(costs)) return average;
  spec.schedule = kOneFOneB.name;
  spec.chunks = 0;
  spec.memory_limit.reset();
  spec.device_memory.reset();
  for (RankCost& rank : spec.costs.ranks) rank.memory_bytes.reset();
  spec.recompute = {};
  spec.offload = {};
  spec.target = Target::kAny;
  if (!spec.partition) spec.partition.emplace();
  try {
    const Plan plan =
        Compile(spec, {.level = Level::kComm, .control = {.made = made}, .any_device = true});
    return ActivationsHeld(plan, *plan.costs, Simulate(plan, *plan.costs, Keep::kFigures));
  } catch (const Error&) {
    // A partition of more stages, or too few layers.
    return average;
  }
}

int64_t LimitOf1F1B(const Spec& spec, double held) {
  return CountsBytes(spec.costs) ? std::llround(held) : MemoryLimitOf(spec, "1x");
}

}  // namespace contraflow
