// The searched schedule: the shortest step for given costs and memory, over all placements.
//
//   spec -> shapes -> rungs of one ladder: each shape runs once, the best first -> incumbent ->
//   plan
//
// A shape is a placement and depth in one of the ways to hold less that the spec leaves open
// (shape.h). Every rung gives each shape four times the work of the one before, and a budget ends
// the sequence at some place: so a larger budget never gives a longer step. A shape whose bound is
// no shorter than the incumbent is not run. Work counts evaluated instructions: the result depends
// on the spec and not on the machine.

#include "schedules/auto/auto.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/auto/shape.h"
#include "schedules/local/noise.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/partition/stages.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/memory_advice.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/incumbent.h"
#include "schedules/search/portfolio.h"
#include "schedules/search/repartition.h"
#include "schedules/search/search.h"
#include "schedules/search/work.h"

namespace contraflow {
namespace {

/// Work of a rung, as a multiple of that of the one before.
constexpr int64_t kStep = 4, kMostTimes = int64_t{1} << 30;
/// Published schedules get partitions of their own if a shape with their routes has come within
/// this share of the incumbent.
constexpr int64_t kNear = 32;
/// Share by which a look at a published schedule may be too long.
constexpr Time kGuessed = 5;
/// Orders that each choice of what to recompute takes as long as to evaluate, and the steps of
/// components of a few partitions.
constexpr int64_t kOrdersRecomputed = 200, kOrdersLowered = 2400;
/// Partitions that are judged for each stage, about.
constexpr int64_t kPartitionsJudged = 100;
/// Instructions of a partition search at most, and of a plan that is always made.
constexpr int64_t kPartitionWork = 6'000'000, kSoonMade = 400'000;

/// Instructions that may be evaluated while a published schedule is made for the spec, about.
int64_t WorkOfPublished(const Plan& frame, const Spec& spec) {
  const int64_t instructions = InstructionsOf(frame);
  int64_t work = kOrdersMade * instructions;
  if (spec.recompute.choice != Recompute::Choice::kNone) work += kOrdersRecomputed * instructions;
  if (spec.search.components) work += kOrdersLowered * instructions;
  if (spec.costs.layers.empty() || FixedPartition(spec, frame.stages)) return work;
  const int64_t judged = kPartitionsJudged * OrdersJudged(spec.costs) * frame.stages;
  return work + std::min(kPartitionWork, judged * instructions);
}

Placement PlacementOf(const Plan& plan) {
  if (plan.routes.size() > 1) return Placement::kBidirectional;
  const std::vector<int>& ranks = plan.routes[0].ranks;
  if (plan.stages == plan.ranks) return Placement::kLinear;
  const bool back = plan.stages == 2 * plan.ranks && ranks.front() == ranks.back();
  return back ? Placement::kV : Placement::kInterleaved;
}

/// The spec of a schedule for the model that the costs describe; nothing where it takes none such.
std::optional<Spec> SpecFor(const Schedule& schedule, const Spec& asked) {
  Spec spec = asked;
  spec.schedule = schedule.name;
  if (!schedule.takes_chunks) spec.chunks = 0;
  if (!schedule.reject(spec).empty()) return std::nullopt;
  const int given = CostStages(asked), stages = schedule.stages(spec);
  SetLimitFor(asked, stages, &spec);
  if (spec.memory_limit && *spec.memory_limit < 1) return std::nullopt;
  if (!spec.costs.layers.empty()) return spec;
  if (!RejectRepartition(spec.costs, given, stages).empty()) return std::nullopt;
  spec.costs = Repartition(spec.costs, given, stages);
  try {
    spec.recompute = RepartitionRecompute(asked.recompute, given, stages);
  } catch (const Error&) {
    return std::nullopt;  // its stages are not those that are named
  }
  return spec;
}

class AutoSearch {
 public:
  AutoSearch(const Spec& asked, const SearchControl& control)
      : asked_(asked), control_(control), work_(FirstOf(asked.search), control), incumbent_(asked) {
    const bool layered = !asked.costs.layers.empty();
    if (layered) CheckDevicesForLayers(asked, control);
    shapes_ = layered ? LayerShapes(asked, control, &incumbent_) : StageShapes(asked, &incumbent_);
  }

  Plan Run() {
    OfferPublished(false);
    LookAtShapes();
    OfferLookedAt();
    bool open = true;
    for (int64_t times = 1; open && (times == 1 || !work_.spent()) && times < kMostTimes;
         times *= kStep) {
      open = RunRung(times);
      if (times == 1) OfferPublished(true);
    }
    if (!incumbent_.any()) Refuse();
    return Finish();
  }

 private:
  /// Runs every open shape that may improve the incumbent, those that fit with the shortest step
  /// first.
  /// False if none is left.
  bool RunRung(int64_t times) {
    std::ranges::stable_sort(shapes_, {}, [&](const std::unique_ptr<Shape>& shape) {
      return shape->step() ? Worth{0, *shape->step()} : looks_[shape.get()];
    });
    bool open = false;
    for (const std::unique_ptr<Shape>& shape : shapes_) {
      // A first run of stages offers at least what is soon made, whatever the budget.
      const bool soon = times == 1 && asked_.costs.layers.empty() &&
                        kOrdersMade * shape->instructions() <= kSoonMade;
      if (work_.spent() && incumbent_.any() && !soon) return true;
      if (closed_.contains(shape.get()) || !Improves(*shape)) continue;
      SearchWork part(&work_, times * shape->orders() * shape->instructions());
      part.Spend(
          shape->instructions());  // so that the sequence ends even if a run has nothing to do
      bool more = false;
      incumbent_.Attempt([&] { more = shape->Run(&part, &incumbent_); });
      if (!more) closed_.insert(shape.get());
      // With recompute the order of a longer plan may become the shorter one.
      const bool best = incumbent_.any() && shape->step() == incumbent_.worth().step;
      if (times == 1 && best && HasAllToAlls(asked_.costs.layers)) OfferBestPublished(*shape);
      open |= more;
      if (incumbent_.any()) Report();
    }
    return open;
  }

  void LookAtShapes() {
    for (const std::unique_ptr<Shape>& shape : shapes_) {
      Worth& worth = looks_[shape.get()] = {INT64_MAX, 0};
      // Its run says why where there is none.
      incumbent_.Attempt([&] { worth = shape->Look(&work_, &incumbent_); });
      // A search may find an order that holds less: such a shape competes with those that
      // recompute.
      if (HoldsLess(asked_) && worth.excess > 0 && worth.excess < INT64_MAX) worth.excess = 1;
    }
  }

  /// Offers published schedules that hide all-to-alls, each for the shape with which it looks
  /// shortest: few searches find orders that hide as many. A look may be longer than the incumbent:
  /// a partition of the schedule's own shortens it.
  void OfferLookedAt() {
    if (!HasAllToAlls(asked_.costs.layers)) return;
    std::vector<const Shape*> shapes;
    for (const std::unique_ptr<Shape>& shape : shapes_) {
      if (!shape->hiding().schedule.empty()) shapes.push_back(shape.get());
    }
    std::ranges::stable_sort(shapes, {}, [](const Shape* shape) { return shape->hiding().step; });
    std::set<std::string> made;
    for (const Shape* shape : shapes) {
      const auto& [schedule, step] = shape->hiding();
      if (incumbent_.any() && step - step / kGuessed > incumbent_.worth().step) return;
      if (made.insert(schedule).second) OfferBestPublished(*shape);
    }
  }

  /// Offers the published schedule that did best on the shape.
  void OfferBestPublished(const Shape& shape) {
    if (work_.spent() && incumbent_.any()) return;
    const PublishedStep& best = shape.hiding();
    const auto row = std::ranges::find(kPublishedSchedules, best.schedule, &Schedule::name);
    if (row == std::end(kPublishedSchedules)) return;
    Spec asked = asked_;
    asked.chunks = static_cast<int>(shape.routes()[0].ranks.size()) / asked.ranks;
    const std::optional<Spec> spec = SpecFor(**row, asked);
    if (!spec) return;
    const Plan frame = (*row)->frame(*spec);
    if (!offered_.emplace(*row, frame.stages).second) return;
    work_.Spend(WorkOfPublished(frame, *spec));
    OfferPlan(**row, *spec, PlacementOf(frame));
  }

  /// True if the shape has come near the incumbent.
  bool IsNear(const Shape& shape) {
    if (!incumbent_.any()) return true;
    const Time step = incumbent_.worth().step;
    return shape.step() && *shape.step() - step <= step / kNear;
  }

  /// False if no plan of the shape is shorter than the incumbent.
  bool Improves(Shape& shape) {
    if (!incumbent_.any()) return true;
    const Time step = incumbent_.worth().step;
    const Time enough = step - static_cast<Time>(static_cast<double>(step) * asked_.search.until);
    return shape.Bound(enough) < enough;
  }

  /// True if there is a shape with these routes; with `near`, one that has come near the incumbent.
  bool Promises(const std::vector<Route>& routes, bool near) {
    return std::ranges::any_of(shapes_, [&](const std::unique_ptr<Shape>& shape) {
      if (shape->routes() != routes) return false;
      return !near || IsNear(*shape);
    });
  }

  /// Offers whole plans of published schedules, each once. Small ones come first, whatever the
  /// budget. Large ones come after the first runs, and only if their placement has come near the
  /// incumbent.
  void OfferPublished(bool after_runs) {
    for (const Schedule* schedule : kPublishedSchedules) {
      const std::optional<Spec> spec = SpecFor(*schedule, asked_);
      if (!spec) continue;
      const Plan frame = schedule->frame(*spec);
      const Placement placement = PlacementOf(frame);
      if (!Allows(asked_.search.placement, placement)) continue;
      const std::pair key(schedule, frame.stages);
      if (offered_.contains(key)) continue;
      if (!after_runs && OfferRow(*schedule, *spec, placement)) {
        offered_.insert(key);
        continue;
      }
      const int64_t work = WorkOfPublished(frame, *spec);
      const bool large = work > kSoonMade && control_.all_made != SearchControl::Made::kWithinLimit;
      if (large != after_runs) continue;
      if (!Promises(frame.routes, large) || (large && work_.spent() && incumbent_.any())) continue;
      // The least that is done whatever the budget counts for nothing.
      if (large) work_.Spend(work);
      offered_.insert(key);
      OfferPlan(*schedule, *spec, placement);
    }
  }

  /// Offers the plan without a memory limit that the caller makes anyway. False if there is none
  /// that fits.
  bool OfferRow(const Schedule& schedule, Spec spec, Placement placement) {
    if (control_.all_made != SearchControl::Made::kWithoutLimit) return false;
    spec.memory_limit.reset();
    return OfferPlan(schedule, spec, placement);
  }

  /// Offers the plan of a published schedule. False if there is none that fits.
  bool OfferPlan(const Schedule& schedule, const Spec& spec, Placement placement) {
    try {
      CheckSpec(spec);
      return OfferPlan(PlanOfPublished(schedule, spec, control_), spec, placement);
    } catch (const InternalError&) {
      throw;
    } catch (const Error&) {
      return false;  // a limit or costs that this schedule cannot have
    }
  }

  bool OfferPlan(Plan plan, const Spec& spec, Placement placement) {
    if (!plan.costs) plan.costs = spec.costs;
    if (!FitsMemory(plan, *plan.costs, asked_)) return false;
    Candidate candidate{placement, spec, FrameOf(plan)};
    candidate.spec.costs = *plan.costs;
    SetLimitFor(asked_, plan.stages, &candidate.spec);
    if (!HoldsLess(spec)) candidate.LimitByDevices();
    const Time bound = HoldsLess(spec)
                           ? ProveBound(plan, *plan.costs, candidate.spec.memory_limit).value
                           : candidate.Bound();
    plan.provenance = ProvenanceOf(candidate, plan.schedule,
                                   Simulate(plan, *plan.costs, Keep::kFigures).makespan, bound);
    plan.schedule = kAuto.name;
    if (incumbent_.Offer(std::move(plan))) Report();
    return true;
  }

  void Report() { work_.Found(incumbent_.worth().step, incumbent_.plan().provenance->bound); }

  /// Half of the budget where the other half is against noise.
  static SearchOptions FirstOf(SearchOptions options) {
    if (options.noise > 0) options.budget /= 2;
    return options;
  }

  /// Replaces the order of the plan by one that is as long without noise and shorter with it.
  void Steady(Plan* plan) {
    // An order of a search has no R and no copies.
    if (RecomputedCells(*plan).any() || OffloadedCells(*plan).any()) return;
    Candidate candidate{Placement::kAny, asked_, FrameOf(*plan)};
    candidate.spec.costs = *plan->costs;
    candidate.spec.memory_limit = plan->provenance->memory_limit;
    candidate.LimitByDevices();
    const SearchProblem problem = MakeProblem(candidate);
    std::optional<Order> order = ToOrder(problem, *plan);
    // An order that stands noise is no longer than another, but its step may be.
    if (!order || SharesStages(*plan) || LongerThanOrder(*plan->costs, asked_.search)) return;
    SearchWork work(FirstOf(asked_.search), control_);
    SearchResult found = {std::move(*order), plan->provenance->makespan, plan->provenance->from};
    LowerExpected(problem, {}, asked_.search, &work, &found);
    plan->programs = ToPlan(problem, found.order).programs;
    plan->provenance->from = found.from.substr(0, kMaxFrom);
    // That may have shortened it.
    plan->provenance->makespan = Evaluate(problem, found.order).makespan;
  }

  Plan Finish() {
    work_.Report();
    Plan plan = incumbent_.Take();
    if (asked_.search.noise > 0) Steady(&plan);
    plan.schedule = asked_.schedule;
    Provenance& provenance = *plan.provenance;
    provenance.budget = asked_.search.budget;
    provenance.seed = asked_.search.seed;
    provenance.noise = asked_.search.noise;
    provenance.interrupted = control_.stopped();
    CheckBytes(*plan.costs);
    const bool layered = !asked_.costs.layers.empty();
    if (!layered && CostStages(asked_) != plan.stages) provenance.cost_stages = CostStages(asked_);
    if (layered) CoverPartitions(asked_, control_, &plan);
    provenance.bound_of_all = BoundOfAll(provenance.bound);
    return plan;
  }

  /// The least of this bound of the plan's placement and those of all shapes; none of one shape, or
  /// where none is known.
  std::optional<Time> BoundOfAll(Time bound) {
    if (shapes_.size() < 2) return std::nullopt;
    Time least = bound;
    for (const std::unique_ptr<Shape>& shape : shapes_) {
      least = std::min(least, shape->Bound(bound));
    }
    return least > 0 ? std::optional(least) : std::nullopt;
  }

  /// Throws the Error that says why nothing fits.
  [[noreturn]] void Refuse() {
    const bool layered = !asked_.costs.layers.empty();
    const bool devices = !DevicesOf(asked_).empty();
    const std::optional<Error>& why_not = incumbent_.why_not();
    if (layered && asked_.memory_limit && !devices) {
      std::optional<Shape::Lack> least;
      for (const std::unique_ptr<Shape>& shape : shapes_) {
        std::optional<Shape::Lack> lack = shape->WhyNot();
        if (lack && (!least || lack->excess < least->excess)) least = std::move(lack);
      }
      if (least) throw Error("auto " + least->advice);
    }
    const bool counted = !layered && asked_.memory_limit && !devices;
    const bool by_device = devices && CountsBytes(asked_.costs);
    if (why_not && !by_device && !(counted && LeastLimit(asked_, asked_.recompute))) throw *why_not;
    if (devices && asked_.recompute.choice == Recompute::Choice::kNone) {
      throw Error(asked_.schedule +
                  " does not fit `device_memory`: no placement that was tried leaves room for one "
                  "micro-batch; " +
                  DeviceAdvice(asked_));
    }
    if (devices) {
      throw Error(asked_.schedule + " does not fit `device_memory`" +
                  (asked_.recompute.everything() ? ", whatever is recomputed; "
                                                 : " with what is recomputed; ") +
                  DeviceAdvice(asked_));
    }
    Spec known = asked_;
    // Without bytes nothing is recomputed.
    if (!CountsBytes(known.costs)) known.recompute = {};
    const std::optional<int64_t> least =
        counted ? LeastLimit(known, known.recompute) : std::nullopt;
    if (least && *least > *LimitFor(known, CostStages(known))) {
      throw Error(asked_.schedule + " " + MemoryAdvice(known));
    }
    throw Error(asked_.schedule + " does not fit `memory_limit`: no plan that was tried holds so " +
                "little; raise it" +
                (asked_.recompute.everything() ? "" : ", or give `recompute` auto"));
  }

  const Spec& asked_;
  const SearchControl& control_;
  SearchWork work_;
  Incumbent incumbent_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::map<const Shape*, Worth> looks_;                // before any run
  std::set<const Shape*> closed_;                      // that no more work can help
  std::set<std::pair<const Schedule*, int>> offered_;  // published schedules and their stages
};

}  // namespace

Plan SearchPlan(const Spec& spec, const SearchControl& control) {
  if (spec.costs.layers.empty()) {
    // A free choice without bytes recomputes nothing.
    using Choice = Recompute::Choice;
    const Choice recompute = spec.recompute.choice;
    if (recompute != Choice::kNone && recompute != Choice::kAuto) CheckRecomputeLimit(spec);
    CheckHostCost(spec.costs, spec.offload.choice != Offload::Choice::kNone);
    if (const std::string why_not = RejectPlacement(spec); !why_not.empty()) {
      throw Error(spec.schedule + " " + why_not);
    }
    CheckCosts(spec.costs, CostStages(spec), spec.microbatches);
  }
  return AutoSearch(spec, control).Run();
}

const Schedule kAuto = {
    .name = "auto",
    .summary = "searched for these costs: the shortest step that fits the memory, with its bound",
    .limits = "any P and M, any `placement`; if the costs list stages, P of them or a multiple",
    .memory = "as `memory_limit` says",
    // Stages of its costs: where the placement has a different number of stages, they are cut or
    // merged.
    .stages = CostStages,
    .reject = RejectPlacement,
    .frame = nullptr,
    .generate = [](const Spec& spec) { return SearchPlan(spec, SearchControl()); },
    // Any order of all micro-batches may come of a search, and a limit is not known here to be in
    // activations.
    .peak_activations = [](const Spec& spec, int) { return MostChunks(spec) * spec.microbatches; },
    .formula = nullptr,
    .takes_chunks = true,
};

}  // namespace contraflow
