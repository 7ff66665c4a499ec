// Which order goes well with the host's memory: one that was made for a looser limit, or for none,
// is shorter and holds more, and what it holds too much may have somewhere to go.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/offload.h"
#include "schedules/recompute/offload_rules.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// How much looser the limits are that orders are made for, in quarters, and the share of the
/// budget that each search has.
struct Looser {
  int quarters;
  int share;
};
constexpr Looser kLooser[] = {{4, 1}, {6, 2}, {8, 2}, {16, 2}};

Spec Loosened(Spec spec, const Looser& looser) {
  const auto times = [&](std::optional<int64_t>* limit) {
    if (*limit)
      *limit =
          std::max<int64_t>(1, **limit / 4 * looser.quarters + **limit % 4 * looser.quarters / 4);
  };
  times(&spec.memory_limit);
  times(&spec.device_memory);
  spec.search.budget /= looser.share;
  spec.offload = {};
  return spec;
}

/// Limit of each rank of a plan, in the unit of MemoryLimit.
std::vector<int64_t> LimitsOf(const Plan& plan, const CostModel& costs, const Spec& spec) {
  std::vector<int64_t> limits(static_cast<size_t>(plan.ranks), INT64_MAX);
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (!devices.empty()) limits = RoomForActivations(plan, costs, devices);
  const std::optional<int64_t> most = LimitFor(spec, plan.stages);
  for (int64_t& limit : limits) limit = std::min(limit, most.value_or(limit));
  return limits;
}

/// Stages of a spec that names them.
std::vector<int> StagesToOffload(const Plan& plan, const Spec& spec) {
  std::vector<int> stages = spec.offload.stages;
  if (spec.offload.choice == Offload::Choice::kFull) {
    stages.resize(static_cast<size_t>(plan.stages));
    std::iota(stages.begin(), stages.end(), 0);
  }
  if (stages.empty() || stages.back() < plan.stages) return stages;
  throw Error("`offload`: there is no stage " + std::to_string(stages.back()) + ", " +
              spec.schedule + " makes " + std::to_string(plan.stages) + " stages (0.." +
              std::to_string(plan.stages - 1) + ")");
}

/// The best plan so far: what fits before what does not, then the shortest step.
class BestOffloaded {
 public:
  explicit BestOffloaded(const Spec& spec) : spec_(spec) {}

  bool any() const { return plan_.has_value(); }
  bool fits() const { return fits_; }
  Plan& plan() { return *plan_; }
  const CostModel& costs() const { return plan_->costs ? *plan_->costs : spec_.costs; }

  bool Offer(Plan plan) {
    const CostModel& costs = plan.costs ? *plan.costs : spec_.costs;
    const bool fits = FitsMemory(plan, costs, spec_);
    const Time step = StepTime(plan, costs, LimitFor(spec_, plan.stages), spec_.search);
    if (plan_ && std::pair(!fits_, step_) <= std::pair(!fits, step)) return false;
    plan_ = std::move(plan);
    fits_ = fits;
    step_ = step;
    return true;
  }

 private:
  const Spec& spec_;
  std::optional<Plan> plan_;
  bool fits_ = false;
  Time step_ = 0;
};

Time BoundOf(const Plan& plan, const CostModel& costs, const std::vector<int64_t>& limits) {
  return BoundOfOffloaded(plan, costs, std::ranges::max(limits)).value;
}

/// Orders that are made together with their copies, for the routes of plans that were searched.
void OfferListed(const std::vector<Plan>& searched, const Spec& spec, const SearchControl& control,
                 BestOffloaded* best) {
  SearchOptions part = spec.search;
  part.budget /= static_cast<int64_t>(searched.size());
  for (const Plan& from : searched) {
    const CostModel& costs = *from.costs;
    const std::vector<int64_t> limits = LimitsOf(from, costs, spec);
    Plan frame = from;
    frame.programs.clear();
    SearchWork work(part, control);
    work.Enter("offload");
    frame =
        SearchOffloadRules(frame, costs, limits, BoundOf(from, costs, limits), part.seed, &work);
    if (frame.programs.empty()) continue;
    frame.provenance->from = "list scheduling with copies";
    // It copies what it can. Where the same order needs fewer copies, those are taken.
    Plan order = frame;
    for (Program& program : order.programs) {
      std::erase_if(program, [](const Instruction& i) { return IsHostCopy(i.op); });
    }
    best->Offer(OffloadToFit(order, costs, limits));
    best->Offer(std::move(frame));
  }
}

/// Moves the order of the best with its copies and, with `recompute`, its R.
void OfferMoved(const Spec& spec, const SearchControl& control, bool recompute,
                BestOffloaded* best) {
  const CostModel costs = best->costs();
  const std::vector<int64_t> limits = LimitsOf(best->plan(), costs, spec);
  const Time bound = BoundOf(best->plan(), costs, limits);
  Plan plan = best->plan();
  // First without, which is so never better than with.
  for (const bool moves_r : {false, true}) {
    if (moves_r && !recompute) break;
    SearchOptions part = spec.search;
    part.budget /= 2;
    SearchWork work(part, control);
    work.Enter("offload");
    plan = ImproveOffloaded(plan, costs, limits, bound, moves_r, spec.search.seed, &work);
  }
  const std::string from = best->plan().provenance->from;
  if (best->Offer(std::move(plan))) best->plan().provenance->from = "local search from " + from;
}

}  // namespace

Plan GenerateOffloaded(const Spec& spec, const SearchControl& control,
                       const GenerateResident& generate) {
  using Choice = Recompute::Choice;
  CheckHostCost(spec.costs, true);
  const bool limited = spec.memory_limit || !DevicesOf(spec).empty();
  const bool freely = spec.offload.choice == Offload::Choice::kAuto;
  BestOffloaded best(spec);
  std::vector<Plan> searched;  // one for each placement
  std::optional<Error> why_not;
  for (const Looser& looser : kLooser) {
    if (!limited && best.any()) break;
    try {
      Plan plan = generate(Loosened(spec, looser));
      const bool known = std::ranges::any_of(
          searched, [&plan](const Plan& other) { return other.routes == plan.routes; });
      if (plan.provenance && !known) searched.push_back(plan);
      const CostModel costs = plan.costs.value_or(spec.costs);
      best.Offer(freely ? OffloadToFit(plan, costs, LimitsOf(plan, costs, spec))
                        : OffloadStages(plan, costs, StagesToOffload(plan, spec)));
    } catch (const Error& error) {
      if (!why_not) why_not = error;
    }
  }
  if (!best.any()) throw *why_not;
  if (best.plan().provenance && freely && limited && !LongerThanOrder(best.costs(), spec.search)) {
    const bool any = spec.recompute.choice == Choice::kAuto;
    if (any || spec.recompute.choice == Choice::kNone) {
      OfferListed(searched, spec, control, &best);
    }
    OfferMoved(spec, control, any && InputBytes(best.costs()).has_value(), &best);
  }
  if (!best.plan().provenance) return std::move(best.plan());
  if (!best.fits() && why_not) throw *why_not;
  Provenance& provenance = *best.plan().provenance;
  const CostModel& costs = best.costs();
  provenance.memory_limit.reset();
  if (limited) provenance.memory_limit = std::ranges::max(LimitsOf(best.plan(), costs, spec));
  provenance.makespan = Simulate(best.plan(), costs, Keep::kFigures).makespan;
  // A plan that does not fit its limit may be shorter than all that do.
  provenance.bound =
      ProveBound(best.plan(), costs, best.fits() ? provenance.memory_limit : std::nullopt).value;
  provenance.budget = spec.search.budget;
  return std::move(best.plan());
}

}  // namespace contraflow
