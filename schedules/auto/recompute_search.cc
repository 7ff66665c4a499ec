// Recompute is chosen with the order. Each order, searched or published, is given the
// recompute that is asked for, and the shortest step that then fits is kept. So the plan is never
// longer than that of a published schedule with the same recompute in the same placement and
// memory.

#include "schedules/auto/recompute_search.h"

#include <algorithm>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/search/exact_search.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Searches of orders that GenerateRecomputed makes of one spec at most.
constexpr int64_t kSearches = 4;
/// Orders that moves must have time to look at, for each instruction of one, to be worth it.
constexpr int64_t kOrdersEach = 8;
/// Shares of the moves: of the plan with all recomputed, of its own, of that with few layers, and
/// of the shortest of these.
constexpr int64_t kMoveShares = 4;

/// True where all schedules of a candidate can be looked at.
bool IsSmall(const Candidate& candidate) {
  return TakesExactly(candidate.frame) &&
         !LongerThanOrder(candidate.spec.costs, candidate.spec.search);
}

/// Least makespan of every order of the candidate's routes with the recompute of its spec: where
/// that is free to choose, whatever it recomputes and in any memory.
Time BoundOf(const Candidate& candidate) {
  const Spec& spec = candidate.spec;
  if (spec.recompute.choice == Recompute::Choice::kAuto) {
    return LowerBound(candidate.frame, spec.costs);
  }
  const Plan recomputed =
      RecomputeStages(SerialOrder(candidate.frame), StagesToRecompute(candidate.frame, spec));
  try {
    return ProveBound(recomputed, spec.costs, spec.memory_limit).value;
  } catch (const Error&) {
    // No plan fits; the offered one says so, with its reason.
    return 0;
  }
}

/// Stages of a plan that are recomputed, all of a stage or nothing of it; nothing if it has others,
/// or parts.
std::optional<std::vector<int>> WholeStagesOf(const Plan& plan) {
  const RecomputedCells cells(plan);
  std::vector<int> stages;
  for (int s = 0; s < plan.stages; ++s) {
    if (!cells.HasStage(s)) continue;
    if (!cells.extent(s).whole()) return std::nullopt;
    for (int m = 0; m < plan.microbatches; ++m) {
      if (!cells.Has(s, m)) return std::nullopt;
    }
    stages.push_back(s);
  }
  return stages;
}

}  // namespace

RecomputeSearch::RecomputeSearch(const Candidate& candidate)
    : candidate_(candidate),
      tight_(candidate.Tightest().spec),
      freely_(candidate.spec.recompute.choice == Recompute::Choice::kAuto),
      bound_(BoundOf(candidate)) {}

bool RecomputeSearch::Proves(Time step) const {
  return !ByComponents(candidate_.spec.costs, candidate_.spec.search) && step <= bound_;
}

std::optional<FoundPlan> RecomputeSearch::Run(SearchWork* work) {
  const int64_t all = work->left();
  // Moves take time by the length of the order, and as many of them as it is long.
  const int64_t length = 4 * int64_t{candidate_.frame.stages} * candidate_.frame.microbatches;
  const bool moves = all / 2 / length >= kOrdersEach * length;
  OfferPublished(work);
  if (!Done(own_)) OfferSearched((moves ? all / 2 : all) / kSearches, work);
  OfferSerial(work);
  if (moves) {
    const int64_t exact = IsSmall(candidate_) ? all / 8 : 0;
    const int64_t share = (all / 2 - exact) / kMoveShares;
    if (full_) {
      // Tried as if that were asked for, so that a free choice is never longer.
      Candidate all_recomputed = candidate_;
      all_recomputed.spec.recompute.choice = Recompute::Choice::kFull;
      OfferMoved(all_recomputed, share, Freedom::kNone, work, &full_);
      OfferExact(all_recomputed, exact / 2, work, &full_);
    }
    OfferMoved(candidate_, share, Freedom::kCells, work, &own_);
    OfferExact(candidate_, exact / 2, work, &own_);
    Take(full_, &own_);
    // In addition to all that, so that layer costs never make the plan longer.
    if (layers_) {
      OfferMoved(candidate_, share, Freedom::kLayers, work, &layers_);
      Take(layers_, &own_);
      OfferMoved(candidate_, share, Freedom::kLayers, work, &own_);
    }
  }
  Take(full_, &own_);
  Take(layers_, &own_);
  return own_;
}

bool RecomputeSearch::Done(const std::optional<FoundPlan>& best) const {
  return best && Proves(best->step);
}

void RecomputeSearch::Take(const std::optional<FoundPlan>& other, std::optional<FoundPlan>* best) {
  if (other && (!*best || other->step < (*best)->step)) *best = other;
}

void RecomputeSearch::Offer(Plan plan, SearchWork* work, std::optional<FoundPlan>* best) const {
  const Spec& spec = candidate_.spec;
  // A searched plan may number its micro-batches in another way.
  if (!plan.provenance && plan.routes != candidate_.frame.routes) return;
  const Simulation run = Simulate(plan, spec.costs, Keep::kFigures);
  if (!candidate_.Fits(run)) return;
  // A step takes no less than its order, but for components.
  const bool components = ByComponents(spec.costs, spec.search);
  if (*best && (components ? MuchLonger(run.makespan, (*best)->plan.provenance->makespan)
                           : run.makespan >= (*best)->step)) {
    return;
  }
  const Time step = StepTime(plan, spec, run.makespan, work);
  if (*best && step >= (*best)->step) return;
  const std::string from = plan.provenance ? plan.provenance->from : plan.schedule;
  plan.costs = spec.costs;
  plan.provenance = ProvenanceOf(candidate_, from, run.makespan,
                                 ProveBound(plan, spec.costs, spec.memory_limit).value);
  *best = FoundPlan{std::move(plan), step};
}

/// `make` gives an order of the candidate for a spec without recompute.
void RecomputeSearch::OfferOrders(const Spec& spec, bool searched, SearchWork* work,
                                  const OrderMaker& make) {
  try {
    RecomputeAlternatives alternatives;
    Offer(GenerateRecomputed(spec, candidate_.frame.stages, Room::kAny, searched, make, work,
                             freely_ ? &alternatives : nullptr),
          work, &own_);
    if (alternatives.full) Offer(std::move(*alternatives.full), work, &full_);
    if (alternatives.layers) Offer(std::move(*alternatives.layers), work, &layers_);
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    // Costs or a limit that this schedule cannot have.
  }
}

/// Each once, since they do not depend on the work; a run goes on where the one before ended.
void RecomputeSearch::OfferPublished(SearchWork* work) {
  for (; published_ < std::size(kPublishedSchedules); ++published_) {
    if (Done(own_) || (own_ && work->spent())) return;
    const Schedule& schedule = *kPublishedSchedules[published_];
    Spec spec = tight_;
    spec.schedule = schedule.name;
    if (!schedule.reject(spec).empty()) continue;
    if (schedule.stages(spec) != candidate_.frame.stages) continue;
    OfferOrders(spec, false, work, [&](const Spec& of) { return GenerateOrder(schedule, of); });
  }
}

/// Its own orders, each with this much of the work.
void RecomputeSearch::OfferSearched(int64_t share, SearchWork* work) {
  OfferOrders(tight_, true, work, [&](const Spec& of) {
    auto known = std::ranges::find_if(
        orders_, [&](const auto& search) { return search->candidate().spec == of; });
    if (known == orders_.end()) {
      Candidate candidate = candidate_;
      candidate.spec = of;
      candidate.Limit(of.memory_limit);
      if (!candidate.FitsSerially(false)) {
        throw Error("auto: one micro-batch does not fit `memory_limit`");
      }
      known = orders_.insert(orders_.end(), std::make_unique<OrderSearch>(candidate));
    }
    SearchWork part(work, share);
    return std::move((*known)->Run(&part)->plan);
  });
}

/// The order that holds least of all is for a limit that is too tight for the others.
void RecomputeSearch::OfferSerial(SearchWork* work) {
  const auto offer = [&](const Spec& spec, std::optional<FoundPlan>* best) {
    if (!*best) Offer(RecomputeOrder(SerialOrder(candidate_.frame), spec, Room::kAny), work, best);
  };
  offer(tight_, &own_);
  if (!freely_) return;
  if (KnowsLayers(tight_.costs)) offer(tight_, &layers_);
  Spec all = tight_;
  all.recompute.choice = Recompute::Choice::kFull;
  offer(all, &full_);
}

/// Offers the best plan with its instructions moved.
void RecomputeSearch::OfferMoved(const Candidate& candidate, int64_t budget, Freedom freedom,
                                 SearchWork* work, std::optional<FoundPlan>* best) {
  if (budget == 0 || !*best || Done(*best)) return;
  const Spec& spec = candidate.spec;
  SearchWork part(work, budget);
  // Lowering to components and exports know R of whole stages.
  const bool freely = spec.recompute.choice == Recompute::Choice::kAuto && !spec.costs.moe &&
                      spec.target != Target::kTorch;
  Plan plan = ImproveRecomputed((*best)->plan, spec.costs, tight_.memory_limit,
                                freely ? freedom : Freedom::kNone, bound_, spec.search.seed,
                                part.left(), &part);
  std::string& from = plan.provenance->from;
  if (!from.starts_with("moves from ")) from = "moves from " + from;
  Offer(std::move(plan), work, best);
}

/// Looks at all schedules with the same stages recomputed as in the best, if that has the
/// candidate's routes; else as the spec has them.
void RecomputeSearch::OfferExact(const Candidate& candidate, int64_t budget, SearchWork* work,
                                 std::optional<FoundPlan>* best) {
  if (budget == 0 || !*best || Done(*best)) return;
  const Spec& spec = candidate.spec;
  std::optional<std::vector<int>> stages;
  if (spec.recompute.choice != Recompute::Choice::kAuto) {
    stages.emplace();
    for (const RecomputedStage& chosen : StagesToRecompute(candidate.frame, spec)) {
      if (!chosen.extent.whole()) return;
      stages->push_back(chosen.stage);
    }
  } else if ((*best)->plan.routes == candidate.frame.routes) {
    stages = WholeStagesOf((*best)->plan);
  }
  if (!stages) return;
  SearchWork part(work, budget);
  ExactSearch exact = SearchExactly(candidate.frame, spec.costs, candidate.limits, *stages,
                                    (*best)->step, bound_, part.left(), &part);
  if (!exact.programs.empty()) {
    Plan plan = candidate.frame;
    plan.schedule = "exact search";
    plan.programs = std::move(exact.programs);
    Offer(std::move(plan), work, best);
  }
  // None that recomputes the same is shorter.
  if (exact.complete) (*best)->plan.provenance->bound = (*best)->plan.provenance->makespan;
}

}  // namespace contraflow
