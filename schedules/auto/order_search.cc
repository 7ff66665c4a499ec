#include "schedules/auto/order_search.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/auto/search.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/search/exact_search.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// The longer of two orders may make the shorter step, with reductions and optimizer steps or taken
/// apart into components; no published one that fits may.
void PreferShorterSteps(const SearchProblem& problem, const std::vector<Plan>& published,
                        const Spec& spec, SearchWork* work, FoundPlan* found) {
  if (!LongerThanOrder(problem.costs, spec.search)) return;
  for (const Plan& plan : published) {
    const std::optional<Order> order = ToOrder(problem, plan);
    if (!order) continue;
    const Evaluation alone = Evaluate(problem, *order);
    if (!alone.fits || MuchLonger(alone.makespan, found->plan.provenance->makespan)) continue;
    const Time step = StepTime(plan, problem.costs, spec, spec.memory_limit, work);
    if (step >= found->step) continue;
    found->step = step;
    found->plan.programs = plan.programs;
    found->plan.provenance->from = plan.schedule;
    found->plan.provenance->makespan = alone.makespan;
  }
}

/// True where the components of neighbouring chunks share lanes, so that an order takes another
/// time than its chunks one after another.
bool SharesLanes(const Spec& spec) {
  return ByComponents(spec.costs, spec.search) && spec.search.components == Overlap::kAll;
}

/// Share of the work of a small candidate for its other searches, before all of its schedules are
/// looked at, and the share of the rest for local search if that does not end.
constexpr int64_t kFirstShare = 8, kLastShare = 8;

/// Orders that are evaluated in the time in which a published one is made.
constexpr int64_t kOrdersOfPublished = 2;

/// Share of a search for the order of micro-batches before it.
constexpr int64_t kArrangeShare = 4;

/// True where micro-batches that differ may come in any order: weight gradients add up in that of
/// the plan, but PyTorch takes none other than ascending in its last stage.
bool MixesMicrobatches(const Candidate& candidate) {
  const Spec& spec = candidate.spec;
  return spec.costs.unlike_microbatches() && !SharesStages(candidate.frame) &&
         spec.search.noise == 0 && spec.target != Target::kTorch;
}

/// True where another order may give routes other micro-batches, so that no bound holds.
bool SharesOutMicrobatches(const Candidate& candidate) {
  return candidate.frame.routes.size() > 1 && MixesMicrobatches(candidate);
}

/// True where all schedules of a candidate can be looked at.
bool FewCells(const Candidate& candidate) {
  if (candidate.spec.search.noise > 0 || SharesLanes(candidate.spec)) return false;
  if (!TakesExactly(candidate.frame)) return false;
  // Only micro-batches that differ are mixed.
  return !candidate.spec.costs.unlike_microbatches() || MixesMicrobatches(candidate);
}

}  // namespace

OrderSearch::OrderSearch(const Candidate& candidate)
    : candidate_(candidate), bound_(candidate.Bound()) {}

bool OrderSearch::Proves(Time step) const {
  return !ByComponents(candidate_.spec.costs, candidate_.spec.search) &&
         !SharesOutMicrobatches(candidate_) && step <= bound_;
}

std::optional<FoundPlan> OrderSearch::Run(SearchWork* work) {
  const Spec& spec = candidate_.spec;
  if (!seeds_) {
    // An order that reaches the bound is enough, unless other figures than its makespan count.
    const bool makespan_only = !LongerThanOrder(spec.costs, spec.search) && spec.search.noise == 0;
    seeds_ =
        Seeds{MakeProblem(candidate_),
              PublishedOrders(candidate_, makespan_only ? std::optional(bound_) : std::nullopt)};
    const auto orders = static_cast<int64_t>(seeds_->published.size());
    work->Spend(orders * kOrdersOfPublished * InstructionsOf(candidate_.frame));
  }
  if (!MixesMicrobatches(candidate_)) return Once(candidate_, *seeds_, &bound_, work);
  SearchWork half(work, work->left() / 2);
  FoundPlan best = Once(candidate_, *seeds_, &bound_, &half);
  if (Proves(best.step)) return best;
  std::optional<FoundPlan> arranged = Arranged(work);
  return arranged && arranged->step < best.step ? std::move(*arranged) : best;
}

FoundPlan OrderSearch::Once(const Candidate& candidate, const Seeds& seeds, Time* bound,
                            SearchWork* work) {
  const Spec& spec = candidate.spec;
  const auto& [problem, published] = seeds;
  const bool small = FewCells(candidate);
  const int64_t share = small ? kFirstShare : 1;
  std::optional<SearchResult> found;
  {
    SearchWork part(work, work->left() / share);
    found = Search(problem, published, *bound, spec.search, &part);
  }
  if (!found) {
    // Policies may miss a tight order; this one holds least of all.
    const std::vector<Plan> serial = {SerialOrder(candidate.frame)};
    found = Search(problem, serial, *bound, spec.search, work);
  }
  CF_ASSERT(found);
  FoundPlan best{ToPlan(problem, found->order)};
  if (small && found->makespan > *bound) {
    *bound = LookAtAll(seeds, *bound, work, &*found, &best.plan);
  }
  if (SharesStages(best.plan)) best.plan = RenumberMicrobatches(std::move(best.plan));
  best.plan.costs = spec.costs;
  best.plan.provenance = ProvenanceOf(candidate, found->from, found->makespan, *bound);
  best.step = StepTime(best.plan, spec.costs, spec, spec.memory_limit, work);
  PreferShorterSteps(problem, published, spec, work, &best);
  return best;
}

/// Looks at all schedules of a small candidate that are shorter than `found`, the order of `plan`.
/// If the work ends before that, local search goes on. Returns the bound: the shortest of all
/// schedules proves itself.
Time OrderSearch::LookAtAll(const Seeds& seeds, Time bound, SearchWork* work, SearchResult* found,
                            Plan* plan) {
  const Spec& spec = candidate_.spec;
  ExactSearch exact =
      SearchExactly(seeds.problem.frame, seeds.problem.costs, candidate_.limits, {},
                    found->makespan, bound, work->left() / kLastShare * (kLastShare - 1), work);
  if (!exact.programs.empty()) {
    plan->programs = std::move(exact.programs);
    found->makespan = exact.makespan;
    found->from = "exact search";
  }
  if (exact.complete) return found->makespan;
  // The search cannot continue from a schedule that mixes the order of micro-batches.
  const std::optional<Order> order = ToOrder(seeds.problem, *plan);
  if (!order) return bound;
  found->order = *order;
  const Time before = found->makespan;
  ImproveWithin(seeds.problem, bound, spec.search.seed, work->left(), work, found);
  if (found->makespan < before) plan->programs = ToPlan(seeds.problem, found->order).programs;
  return bound;
}

/// Searches with the micro-batches in the order that suits them best, which may give each route
/// others; nothing where that is the order of their numbers.
std::optional<FoundPlan> OrderSearch::Arranged(SearchWork* work) {
  SearchWork part(work, work->left() / kArrangeShare);
  const Time enough = SharesOutMicrobatches(candidate_) ? 0 : bound_;
  const std::vector<int> order = ArrangeMicrobatches(seeds_->problem, enough, &part);
  if (std::ranges::is_sorted(order)) return std::nullopt;
  Candidate arranged = candidate_;
  CostModel& costs = arranged.spec.costs;
  costs.microbatch_scale = ScaleInOrder(candidate_.spec.costs, order);
  Time bound = arranged.Bound();
  const Seeds seeds = {MakeProblem(arranged), PublishedOrders(arranged)};
  FoundPlan found = Once(arranged, seeds, &bound, work);
  found.plan = NumberMicrobatches(std::move(found.plan), order);
  found.plan.costs = candidate_.spec.costs;
  return found;
}

}  // namespace contraflow
