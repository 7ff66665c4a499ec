// Recompute in a searched plan: where stages live, their order and what is recomputed are chosen
// together, placement by placement. Each order, searched or published, is given the recompute that
// is asked for, and the shortest step that then fits is kept. So the plan is never longer than that
// of a published schedule with the same Spec::recompute in the same placement and memory.

#include "schedules/search/search.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/moves.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/exact_search.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Searches that GenerateRecomputed makes of one spec at most.
constexpr int64_t kSearches = 4;
/// Orders that moves must have time to look at, for each instruction of one, to be worth it.
constexpr int64_t kOrdersEach = 8;

/// How the budget of a candidate is shared out.
struct Shares {
  int64_t search = 0;  ///< for each search
  int64_t moves = 0, exact = 0;
};

/// True where all schedules of a candidate can be looked at.
bool IsSmall(const Candidate& candidate) {
  return TakesExactly(candidate.frame) &&
         !LongerThanOrder(candidate.spec.costs, candidate.spec.search);
}

/// Moves take time by the length of the order, and as many of them as it is long.
Shares SharesOf(const Candidate& candidate, int64_t budget) {
  const int64_t length = 4 * int64_t{candidate.frame.stages} * candidate.frame.microbatches;
  const int64_t half = budget / 2, each = SearchWork::kNanosecondsEach;
  if (half / each / length < kOrdersEach * length) return {budget / kSearches, 0, 0};
  const int64_t exact = IsSmall(candidate) ? budget / 8 : 0;
  return {half / kSearches, half - exact, exact};
}

/// The shortest step so far, over all placements.
class ShortestStep {
 public:
  ShortestStep(const Spec& spec, const SearchControl& control) : spec_(spec), control_(control) {}

  /// Takes the plan for a candidate if it fits and its step is shorter.
  void Offer(Plan plan, const Candidate& candidate) {
    const Spec& spec = candidate.spec;
    // A searched plan may number its micro-batches in another way.
    if (!plan.provenance && plan.routes != candidate.frame.routes) return;
    const Simulation simulation = Simulate(plan, spec.costs);
    if (!MemoryLimit(spec.costs, spec.memory_limit).Fits(simulation)) return;
    const Time step = LongerThanOrder(spec.costs, spec.search)
                          ? StepTime(plan, spec.costs, spec.memory_limit, spec.search)
                          : simulation.makespan;
    if (best_ && step >= step_) return;
    step_ = step;
    const std::string from = plan.provenance ? plan.provenance->from : plan.schedule;
    plan.schedule = spec_.schedule;
    plan.costs = spec.costs;
    plan.provenance = ProvenanceOf(candidate, spec_, from, simulation.makespan,
                                   ProveBound(plan, spec.costs, spec.memory_limit).value);
    plan.provenance->interrupted = control_.stopped();
    best_ = std::move(plan);
  }

  /// False where no order takes a shorter step, if `bound` is one on its makespan.
  bool MayImprove(Time bound) const {
    const bool components = spec_.search.components && spec_.costs.components();
    return !best_ || components || bound < step_;
  }

  /// None that recomputes the same is shorter.
  void Prove() { best_->provenance->bound = best_->provenance->makespan; }

  /// Takes what another has found if that is shorter.
  void Take(ShortestStep* other) {
    if (!other->best_ || (best_ && other->step_ >= step_)) return;
    best_ = std::move(other->best_);
    step_ = other->step_;
  }

  std::optional<Plan>& best() { return best_; }
  Time step() const { return step_; }
  /// True if there is a plan and no more is wanted.
  bool stopped() const { return best_ && control_.stopped(); }
  const SearchControl& control() const { return control_; }

 private:
  const Spec& spec_;
  const SearchControl& control_;
  std::optional<Plan> best_;
  Time step_ = 0;
};

/// On the makespan of every order of the candidate's routes with the recompute of its spec: where
/// that is free to choose, whatever it recomputes and in any memory.
Time BoundOfCandidate(const Candidate& candidate) {
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

/// Shortest of a placement, whatever was found in others: with stages alone, with single layers,
/// and with all recomputed.
struct Shortest {
  ShortestStep own, layers, full;
};

/// The published orders and its own, those that are searched last, until one reaches `bound`.
void OfferAll(const Candidate& candidate, Time bound, Shortest* shortest,
              std::optional<Error>* first_error) {
  ShortestStep& own = shortest->own;
  const bool freely = candidate.spec.recompute.choice == Recompute::Choice::kAuto;
  const auto offer = [&](const Schedule& schedule) {
    if (own.stopped() || !own.MayImprove(bound)) return;
    Spec spec = candidate.spec;
    spec.schedule = schedule.name;
    if (!schedule.reject(spec).empty()) return;
    if (schedule.stages(spec) != candidate.frame.stages) return;
    try {
      RecomputedBeside beside;
      own.Offer(
          GenerateRecomputed(schedule, spec, Room::kAny, own.control(), freely ? &beside : nullptr),
          candidate);
      if (beside.full) shortest->full.Offer(std::move(*beside.full), candidate);
      if (beside.layers) shortest->layers.Offer(std::move(*beside.layers), candidate);
    } catch (const Error& error) {
      if (!*first_error) *first_error = error;
    }
  };
  for (const Schedule* schedule : kPublishedSchedules) offer(*schedule);
  offer(kAuto);
  // The order that holds least of all is for a limit that is too tight for the others.
  const auto offer_serial = [&](const Spec& spec, ShortestStep* to) {
    if (to->best()) return;
    to->Offer(RecomputeOrder(SerialOrder(candidate.frame), spec, Room::kAny), candidate);
  };
  offer_serial(candidate.spec, &own);
  if (!freely) return;
  if (KnowsLayers(candidate.spec.costs)) offer_serial(candidate.spec, &shortest->layers);
  Spec all = candidate.spec;
  all.recompute.choice = Recompute::Choice::kFull;
  offer_serial(all, &shortest->full);
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

/// Offers the result of moving the instructions of the shortest so far.
void OfferMoved(const Candidate& candidate, Time bound, int64_t budget, Freedom freedom,
                ShortestStep* shortest) {
  if (budget == 0 || !shortest->best() || !shortest->MayImprove(bound) || shortest->stopped())
    return;
  const Spec& spec = candidate.spec;
  SearchOptions options = spec.search;
  options.budget = budget;
  SearchWork work(options, shortest->control());
  // Lowering to components and exports know R of whole stages.
  const bool freely = spec.recompute.choice == Recompute::Choice::kAuto && !spec.costs.moe &&
                      spec.target != Target::kTorch;
  Plan plan =
      ImproveRecomputed(*shortest->best(), spec.costs, spec.memory_limit,
                        freely ? freedom : Freedom::kNone, bound, options.seed, work.left(), &work);
  std::string& from = plan.provenance->from;
  if (!from.starts_with("moves from ")) from = "moves from " + from;
  shortest->Offer(std::move(plan), candidate);
}

/// Offers the shortest with the same stages recomputed as in the shortest so far, if that has the
/// candidate's routes; else as the spec has them.
void OfferExact(const Candidate& candidate, Time bound, int64_t budget, ShortestStep* shortest) {
  if (budget == 0 || !shortest->MayImprove(bound) || shortest->stopped()) return;
  const Spec& spec = candidate.spec;
  std::optional<std::vector<int>> stages;
  if (spec.recompute.choice != Recompute::Choice::kAuto) {
    stages.emplace();
    for (const RecomputedStage& chosen : StagesToRecompute(candidate.frame, spec)) {
      if (!chosen.extent.whole()) return;
      stages->push_back(chosen.stage);
    }
  } else if (shortest->best() && shortest->best()->routes == candidate.frame.routes) {
    stages = WholeStagesOf(*shortest->best());
  }
  if (!stages || !shortest->best()) return;
  SearchOptions options = spec.search;
  options.budget = budget;
  SearchWork work(options, shortest->control());
  ExactSearch exact = SearchExactly(candidate.frame, spec.costs, spec.memory_limit, *stages,
                                    shortest->step(), bound, work.left(), &work);
  if (!exact.programs.empty()) {
    Plan plan = candidate.frame;
    plan.schedule = "exact search";
    plan.programs = std::move(exact.programs);
    shortest->Offer(std::move(plan), candidate);
  }
  if (exact.complete) shortest->Prove();
}

/// Without any recompute, for which it is asked only where it shortens the step.
void OfferPlain(Spec spec, const std::vector<Candidate>& candidates, ShortestStep* shortest) {
  spec.recompute = {};
  try {
    Plan plan = GenerateOrder(kAuto, spec, shortest->control());
    const auto made = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return Name(c.placement) == plan.provenance->placement;
    });
    CF_ASSERT(made != candidates.end());
    shortest->Offer(std::move(plan), *made);
  } catch (const Error&) {
    // It does not fit, and what is recomputed may.
  }
}

}  // namespace

Plan GenerateSearchedRecomputed(const Spec& spec, const SearchControl& control) {
  CheckRecomputeLimit(spec);
  const std::string why_not = RejectPlacement(spec);
  if (!why_not.empty()) throw Error(spec.schedule + " " + why_not);
  CheckCosts(spec.costs, CostStages(spec), spec.microbatches);
  ShortestStep shortest(spec, control);
  std::optional<Error> first_error;
  std::vector<Candidate> candidates = CandidatesOf(spec);
  const bool freely = spec.recompute.choice == Recompute::Choice::kAuto;
  // Layers are searched without in all partitions.
  if (freely && spec.costs.partition.empty()) OfferPlain(spec, candidates, &shortest);
  for (Candidate& candidate : candidates) {
    candidate.spec.recompute =
        RepartitionRecompute(spec.recompute, CostStages(spec), candidate.frame.stages);
    const Shares shares = SharesOf(candidate, spec.search.budget);
    candidate.spec.search.budget = shares.search;
    if (freely && !candidate.spec.memory_limit) continue;
    const Time bound = BoundOfCandidate(candidate);
    if (!shortest.MayImprove(bound)) continue;
    Shortest found = {{spec, control}, {spec, control}, {spec, control}};
    auto& [own, layers, full] = found;
    OfferAll(candidate, bound, &found, &first_error);
    if (full.best()) {
      // Tried as if that were asked for, so that a free choice is never longer.
      Candidate all = candidate;
      all.spec.recompute.choice = Recompute::Choice::kFull;
      OfferMoved(all, bound, shares.moves, Freedom::kNone, &full);
      OfferExact(all, bound, shares.exact, &full);
    }
    OfferMoved(candidate, bound, shares.moves, Freedom::kCells, &own);
    OfferExact(candidate, bound, shares.exact, &own);
    own.Take(&full);
    // Beside all that, so that to know layers makes nothing longer: what begins with few of them,
    // and what is then shortest.
    if (layers.best()) {
      OfferMoved(candidate, bound, shares.moves, Freedom::kLayers, &layers);
      own.Take(&layers);
      OfferMoved(candidate, bound, shares.moves / 2, Freedom::kLayers, &own);
    }
    shortest.Take(&own);
    if (shortest.stopped()) break;
  }
  // The lack of an order without recompute is no news.
  const bool devices = !shortest.best() && !DevicesOf(spec).empty();
  if (devices && !LeavesRoom(spec)) {
    throw Error(spec.schedule + " does not fit `device_memory`" +
                (spec.recompute.everything() ? ", whatever is recomputed; "
                                             : " with what is recomputed; ") +
                DeviceAdvice(spec));
  }
  if (!shortest.best() && first_error &&
      (devices || !(spec.memory_limit && LeastLimit(spec, spec.recompute)))) {
    throw *first_error;
  }
  if (!shortest.best()) throw Error(spec.schedule + " " + MemoryAdvice(spec));
  return std::move(*shortest.best());
}

}  // namespace contraflow
